-- Alerts: what was found, whether it was sent, and what nobody wants to hear of for a while.

-- name: lock_route
-- Whose alert a job routes, and by which periods its versions find rows. Until the transaction ends, nobody else routes this alert: not in another dispatcher, and
-- not for another version.
select d.org_id, d.name as dag, j.building, tp_now() as now,
  (select array_agg(distinct m.definition->'partitions') from dag_versions v join dag_version_datasets m using (dag_version_id)
   where v.dag_id = j.dag_id and m.dataset_uuid = (select i.dataset_uuid from job_inputs i where i.job_id = j.job_id limit 1)) as periods,
  pg_advisory_xact_lock(hashtextextended(d.dag_id::text || ' ' || $2, 38))
from jobs j join dags d using (dag_id) where j.job_id = $1

-- name: now
-- By the clock of the database.
select tp_now()

-- name: without_events
-- Those of these tasks that no event has made.
select t.task_id from unnest($1::uuid[]) as t (task_id)
where not exists (select 1 from task_inputs i where i.task_id = t.task_id)

-- name: known
-- What is known of these alerts, of those at these positions that are not gone, and of those by other periods ($10 to
-- $12), with their subjects.
select e.key, e.position, e.occurrence, e.suppressed, e.retracted_at is not null as retracted,
  $7::uuid = any(e.generations) as is_ours, e.released, e.event_time, e.periods,
  case when e.periods <> $9 then e.subject end as subject,
  exists (select 1 from jobs r join jobs j on j.dag_id = r.dag_id and j.name = r.name join job_inputs i on i.job_id = j.job_id
          where r.job_id = $8 and j.building and i.generation_id = any(e.generations)) as is_built
from (
  select * from alert_events where org_id = $1 and dag = $2 and alert = $3 and key = any($4::text[])
  union
  select e.* from alert_events e
  join unnest($5::int8[], $6::int8[]) as r (first, last) on e.position between r.first and r.last
  where e.org_id = $1 and e.dag = $2 and e.alert = $3 and e.retracted_at is null and coalesce(e.periods, $9) = $9
  union
  select e.* from alert_events e
  join unnest($10::text[], $11::int8[], $12::int8[]) as r (periods, first, last)
    on e.position between r.first and r.last and e.periods = r.periods
  where e.org_id = $1 and e.dag = $2 and e.alert = $3 and e.retracted_at is null
) e

-- name: add
-- New alerts, and those that are found again after they were gone.
insert into alert_events as e (org_id, dag, alert, dataset_id, owner, channels, generations, periods, key, position, severity,
  title, body, subject, fields, event_time, occurrence, incident, suppressed)
select $1, $2, $3, coalesce($6::text, case when $2 = '' then n.subject->>'dataset' end), $4, $5::text[], array[$7::uuid], $8::text, n.*
from unnest($9::text[], $10::int8[], $11::text[], $12::text[], $13::text[],
  $14::jsonb[], $15::jsonb[], $16::timestamptz[], $17::int[], $18::text[], $19::text[])
  as n (key, position, severity, title, body, subject, fields, event_time, occurrence, incident, suppressed)
order by n.key
on conflict (org_id, dag, alert, key) do update set
  generations = array_remove(e.generations, $7::uuid) || $7::uuid, periods = excluded.periods, dataset_id = excluded.dataset_id,
  channels = excluded.channels,
  occurrence = excluded.occurrence, incident = excluded.incident, suppressed = excluded.suppressed,
  released = false, retracted_at = null, found_at = tp_now(),
  title = excluded.title, body = excluded.body, subject = excluded.subject, fields = excluded.fields,
  acknowledged_at = null, acknowledged_by = null

-- name: see_again
-- Alerts that this generation has found too.
update alert_events set generations = generations || $5::uuid
where org_id = $1 and dag = $2 and alert = $3 and key = any($4::text[]) and not $5::uuid = any(generations)

-- name: retract
-- Alerts whose cause is gone. Returns those that were sent.
with gone as (
  update alert_events set retracted_at = tp_now(), generations = '{}'
  where org_id = $1 and dag = $2 and alert = $3 and key = any($4::text[]) and retracted_at is null
  returning *
)
select org_id, dag, alert, position, periods, key, incident, occurrence, severity, title, body, subject, fields, event_time,
  channels
from gone where suppressed is null order by key

-- name: still_there
-- Those of these alerts about whose subjects a generation still finds something at these positions.
select a.key from unnest($4::text[], $5::jsonb[], $6::int8[], $7::int8[]) as a (key, subject, first, last)
where exists (
  select 1 from alert_events e where e.org_id = $1 and e.dag = $2 and e.alert = $3 and e.retracted_at is null
    and e.position between a.first and a.last and coalesce(e.periods, $9) = $9 and e.subject = a.subject
    and $8::uuid = any(e.generations) and e.key <> a.key)

-- name: ended_incidents
-- Those of these incidents of which no alert is left.
select i.incident from unnest($4::text[]) as i (incident)
where not exists (select 1 from alert_events e where e.org_id = $1 and e.dag = $2 and e.alert = $3
                  and e.incident = i.incident and e.retracted_at is null)

-- name: hold
-- Alerts that were gone for the version that serves, but that one being built still finds: it sends them when it serves.
update alert_events set retracted_at = null, occurrence = occurrence + 1, incident = key, suppressed = 'building',
  released = false, generations = (select array_agg(i.generation_id) from jobs r join jobs j on j.dag_id = r.dag_id and j.name = r.name
                 join job_inputs i on i.job_id = j.job_id where r.job_id = $5 and j.building)
where org_id = $1 and dag = $2 and alert = $3 and key = any($4::text[])

-- name: forget_by_generation
-- Alerts that a version which does not serve no longer finds. What it alone had found is gone.
update alert_events set generations = array_remove(generations, $5::uuid),
  retracted_at = case when suppressed = 'building' and not released then tp_now() end
where org_id = $1 and dag = $2 and alert = $3 and key = any($4::text[])

-- name: partitions
-- How what an alert finds is partitioned.
select definition->'partitions' from datasets where org_id = $1 and dataset_id = $2

-- name: sent_since
-- How many were sent since a time, up to a number.
select count(*) from (
  select 1 from alert_events
  where org_id = $1 and dag = $2 and alert = $3 and suppressed is null and found_at > tp_now() - $4 * interval '1 second'
  limit $5
) sent

-- name: sent_about
-- The same about each of these subjects, in their order.
select (
  select count(*) from (
    select 1 from alert_events e
    where e.org_id = $1 and e.dag = $2 and e.alert = $3 and e.suppressed is null
      and md5(e.subject::text) = md5(s.subject::text) and e.found_at > tp_now() - $4 * interval '1 second'
    limit $5
  ) sent
) as sent
from unnest($6::jsonb[]) with ordinality as s (subject, nth) order by s.nth

-- name: silences
-- Those that hold now for an alert.
select subject from alert_silences
where org_id = $1 and coalesce(dag, $2) = $2 and coalesce(alert, $3) = $3 and ends_at > tp_now()
