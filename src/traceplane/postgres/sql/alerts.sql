-- Alerts: what was found, whether it was sent, and what nobody wants to hear of for a while.

-- name: lock_route
-- Whose alert a job routes. Until the transaction ends, nobody else routes this alert: not in another dispatcher, and
-- not for another version.
select d.org_id, d.name as dag, j.building, tp_now() as now,
  pg_advisory_xact_lock(hashtextextended(d.dag_id::text || ' ' || $2, 38))
from jobs j join dags d using (dag_id) where j.job_id = $1

-- name: now
-- By the clock of the database.
select tp_now()

-- name: awaited
-- Of these positions, those that new events are about which have not been routed: they wait for the alert itself, or for
-- any job between it and their source. In any version of the alert, or ($5) in the one that is being built.
with recursive upstream as (
  select j.job_id from jobs r join jobs j on j.dag_id = r.dag_id and j.name = r.name
  where r.job_id = $1 and j.routed and (j.building or not $5::boolean)
  union
  select o.job_id from upstream u join job_inputs i on i.job_id = u.job_id join job_outputs o using (generation_id)
), unfinished as (
  select t.task_id, t.range_start, t.range_end from upstream u join tasks t on t.job_id = u.job_id
  where t.stage = 0 and not t.backfill
  union all
  select t.task_id, t.range_start, t.range_end from upstream u join tasks t on t.job_id = u.job_id
  where t.stage = 1 and not t.backfill
  union all
  select null, h.range_start, h.range_end from upstream u join alert_handovers h on h.job_id = u.job_id
)
select distinct greatest(t.range_start, r.first) as first, least(t.range_end, r.last) as last
from unfinished t join unnest($2::int8[], $3::int8[]) as r (first, last)
  on t.range_start <= r.last and t.range_end >= r.first
where t.task_id is null or not t.task_id = any($4::uuid[])

-- name: known
-- What is known of these alerts, and of those at these positions that are not gone.
select e.key, e.position, e.occurrence, e.suppressed, e.retracted_at is not null as retracted,
  $7::uuid = any(e.generations) as is_ours, e.event_time,
  exists (select 1 from jobs r join jobs j on j.dag_id = r.dag_id and j.name = r.name join job_inputs i on i.job_id = j.job_id
          where r.job_id = $8 and j.building and i.generation_id = any(e.generations)) as is_built
from (
  select * from alert_events where org_id = $1 and dag = $2 and alert = $3 and key = any($4::text[])
  union
  select e.* from alert_events e
  join unnest($5::int8[], $6::int8[]) as r (first, last) on e.position between r.first and r.last
  where e.org_id = $1 and e.dag = $2 and e.alert = $3 and e.retracted_at is null
) e

-- name: add
-- New alerts, and those that are found again after they were gone.
insert into alert_events as e (org_id, dag, alert, dataset_id, owner, channels, generations, key, position, severity,
  title, body, subject, fields, event_time, occurrence, incident, suppressed)
select $1, $2, $3, coalesce($6::text, case when $2 = '' then n.subject->>'dataset' end), $4, $5::text[], array[$7::uuid], n.*
from unnest($8::text[], $9::int8[], $10::text[], $11::text[], $12::text[],
  $13::jsonb[], $14::jsonb[], $15::timestamptz[], $16::int[], $17::text[], $18::text[])
  as n (key, position, severity, title, body, subject, fields, event_time, occurrence, incident, suppressed)
order by n.key
on conflict (org_id, dag, alert, key) do update set
  generations = array_remove(e.generations, $7::uuid) || $7::uuid, dataset_id = excluded.dataset_id,
  channels = excluded.channels,
  occurrence = excluded.occurrence, incident = excluded.incident, suppressed = excluded.suppressed, retracted_at = null, found_at = tp_now(),
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
select org_id, dag, alert, position, key, incident, occurrence, severity, title, body, subject, fields, event_time,
  channels
from gone where suppressed is null order by key

-- name: ended_incidents
-- Those of these incidents of which no alert is left.
select i.incident from unnest($4::text[]) as i (incident)
where not exists (select 1 from alert_events e where e.org_id = $1 and e.dag = $2 and e.alert = $3
                  and e.incident = i.incident and e.retracted_at is null)

-- name: hold
-- Alerts that were gone for the version that serves, but that one being built still finds: it sends them when it serves.
update alert_events set retracted_at = null, occurrence = occurrence + 1, incident = key, suppressed = 'building',
  generations = (select array_agg(i.generation_id) from jobs r join jobs j on j.dag_id = r.dag_id and j.name = r.name
                 join job_inputs i on i.job_id = j.job_id where r.job_id = $5 and j.building)
where org_id = $1 and dag = $2 and alert = $3 and key = any($4::text[])

-- name: forget_by_generation
-- Alerts that a version which does not serve no longer finds. What it alone had found is gone.
update alert_events set generations = array_remove(generations, $5::uuid),
  retracted_at = case when suppressed = 'building' then tp_now() end
where org_id = $1 and dag = $2 and alert = $3 and key = any($4::text[])

-- name: release
-- Tasks for alerts that only a version had found that did not serve: it does now, so its jobs route them, as they route
-- all others. They are history in all else: nothing has happened at these positions.
insert into tasks (task_id, job_id, state, priority, backfill, kind, range_start, range_end, created_at, ready_at)
select uuid7(), r.job_id, 'queued', 0, true, 'invalidation', r.position, r.position, tp_now(), tp_now()
from (
  select distinct j.job_id, e.position
  from dags d join jobs j using (dag_id) join job_inputs i using (job_id)
  join alert_events e on e.org_id = d.org_id and e.dag = d.name and e.alert = j.definition->'config'->>'alert'
  where d.dag_id = $1 and j.operator = $2 and j.routed and not j.building and i.generation_id = any(e.generations)
    and e.suppressed = 'building' and e.retracted_at is null
) r

-- name: partitions
-- How what an alert finds is partitioned.
select definition->'partitions' from datasets where org_id = $1 and dataset_id = $2

-- name: hand_over
-- What jobs that were retired had not done of new events, for the alerts behind them: it is new to the jobs that route
-- these alerts from now on, and to those of other DAGs, which read the same datasets from their new jobs.
with recursive own as (
  select n.job_id as heir, r.job_id from jobs r join jobs n on n.dag_id = r.dag_id and n.name = r.name
  where r.job_id = any($1::uuid[]) and r.operator = $2 and n.operator = $2 and n.routed
  union
  select u.heir, o.job_id from own u join job_inputs i on i.job_id = u.job_id join job_outputs o using (generation_id)
  where o.job_id = any($1::uuid[])
), behind as (
  select o.job_id, i.job_id as reader from job_outputs o join datasets d using (dataset_uuid)
  join job_inputs i on i.generation_id = d.current_generation_id join jobs n on n.job_id = i.job_id
  where o.job_id = any($1::uuid[]) and n.dag_id <> d.dag_id and n.routed
  union
  select b.job_id, i.job_id from behind b join job_outputs o on o.job_id = b.reader join job_inputs i using (generation_id)
  join jobs n on n.job_id = i.job_id where n.routed
), upstream as (
  select heir, job_id from own
  union
  select b.reader, b.job_id from behind b join jobs n on n.job_id = b.reader where n.operator = $2
), unfinished as (
  select u.heir, t.partition_key, t.range_start, t.range_end from upstream u join tasks t on t.job_id = u.job_id
  where t.stage = 0 and not t.backfill and t.range_start is not null
  union
  select u.heir, t.partition_key, t.range_start, t.range_end from upstream u join tasks t on t.job_id = u.job_id
  where t.stage = 1 and not t.backfill and t.range_start is not null
  union
  select u.heir, h.partition_key, h.range_start, h.range_end from upstream u join alert_handovers h on h.job_id = u.job_id
), forgotten as (
  delete from alert_handovers where job_id = any($1::uuid[])
)
insert into alert_handovers (job_id, partition_key, range_start, range_end) select * from unfinished
on conflict do nothing

-- name: handed_over
-- Whether something is.
select exists (select 1 from alert_handovers)

-- name: settle_handovers
-- Tasks for what was handed over and has arrived: nothing about it is on its way any more, in no replay either, nor dead
-- and still to be retried. They compare once more what is there with what was told. The order is another one each time,
-- so that those whose jobs stand still do not hold up the others.
with recursive handed as materialized (
  select * from alert_handovers order by random() limit $1 for update skip locked
), upstream as (
  select distinct job_id as heir, job_id from handed
  union
  select u.heir, o.job_id from upstream u join job_inputs i on i.job_id = u.job_id join job_outputs o using (generation_id)
), busy as materialized (
  select u.heir, null::bigint as range_start, null::bigint as range_end from upstream u
  where exists (select 1 from replays r where r.job_id = u.job_id) or exists (select 1 from catch_ups c where c.job_id = u.job_id)
  union all
  select u.heir, t.range_start, t.range_end from upstream u join tasks t on t.job_id = u.job_id
  where t.stage = 0 and t.range_start is not null
  union all
  select u.heir, t.range_start, t.range_end from upstream u join tasks t on t.job_id = u.job_id
  where t.stage = 1 and t.range_start is not null
  union all
  select u.heir, t.range_start, t.range_end from upstream u join handed h on h.job_id = u.heir
  join dead_tasks t on t.job_id = u.job_id and t.range_start <= h.range_end and t.range_end >= h.range_start
  where t.acknowledged_at is null and t.standing = 'open'
), settled as (
  delete from alert_handovers a using handed h
  where (a.job_id, a.range_start, a.range_end) = (h.job_id, h.range_start, h.range_end)
    and a.partition_key is not distinct from h.partition_key
    and not exists (select 1 from busy b where b.heir = h.job_id
                    and (b.range_start is null or b.range_start <= h.range_end and b.range_end >= h.range_start))
  returning a.*
)
insert into tasks (task_id, job_id, state, priority, backfill, kind, partition_key, range_start, range_end, created_at, ready_at)
select uuid7(), job_id, 'queued', 0, false, 'invalidation', partition_key, range_start, range_end, tp_now(), tp_now()
from settled returning 1

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
