-- Alerts, as people look at them, acknowledge and silence them.

-- name: listed
-- Alerts of an organization, newest first, without those about datasets that the caller may not read ($6). Of those
-- that are about no dataset, without those about jobs that the caller may not see ($7; null: without all of them).
select e.alert_event_id as alert_id, e.dag, e.alert, e.dataset_id, e.key, e.incident, e.occurrence, e.position, s.state,
  e.severity, e.title, e.body, e.subject, e.fields, e.owner, e.channels, e.event_time, e.found_at, e.suppressed,
  e.retracted_at, e.acknowledged_at, e.acknowledged_by
from alert_events e cross join lateral (
  select case when e.retracted_at is not null then 'retracted' when e.acknowledged_at is not null then 'acknowledged'
    when e.suppressed is not null then 'suppressed' else 'open' end as state) s
where e.org_id = $1 and ($2::text is null or e.dag = $2) and ($3::text is null or e.alert = $3)
  and ($4::text is null or s.state = $4) and ($5::uuid is null or e.alert_event_id < $5)
  and case when e.dataset_id is not null then e.dataset_id <> all($6::text[])
      else concat(e.subject->>'dag', '/', e.subject->>'job') <> all($7::text[]) end
  and ($8::uuid is null or e.alert_event_id = $8)
order by e.alert_event_id desc limit $9

-- name: counts
-- How many alerts there are, for each of them and each reason not to send it.
select dag, alert, suppressed, count(*) as found, count(retracted_at) as retracted,
  count(*) filter (where suppressed is null and retracted_at is null and acknowledged_at is null) as open,
  max(found_at) as last_found_at
from alert_events
where org_id = $1 and ($2::text is null or dag = $2) and ($3::text is null or alert = $3)
  and case when dataset_id is not null then dataset_id <> all($4::text[])
      else concat(subject->>'dag', '/', subject->>'job') <> all($5::text[]) end
group by dag, alert, suppressed order by dag, alert, suppressed

-- name: messages
-- What was queued about an alert, oldest first.
select d.delivery_id, c.name as channel, d.kind, d.state, d.tries, d.created_at, d.ended_at, d.failure->>'code' as code,
  d.failure->>'reason' as reason
from alert_deliveries d join channels c using (channel_id)
where d.org_id = $1 and d.incident = any($2::text[]) order by d.number

-- name: acknowledge
-- Alerts that somebody is dealing with: those with these ids, or the oldest open ones of an alert; and what was sent
-- with them in one message, whose receiver is told of all of it.
with asked as materialized (
  select e.alert_event_id, e.dag, e.alert, e.incident from alert_events e
  where e.org_id = $1 and e.retracted_at is null and e.acknowledged_at is null
    and case when $3::text is null then e.alert_event_id = any($2::uuid[])
        else e.alert = $3 and e.suppressed is null and ($4::text is null or e.dag = $4) end
    and case when e.dataset_id is not null then e.dataset_id <> all($5::text[])
      else concat(e.subject->>'dag', '/', e.subject->>'job') <> all($6::text[]) end
  order by e.alert_event_id limit $7
), chosen as materialized (
  select e.alert_event_id from alert_events e
  where e.org_id = $1 and e.retracted_at is null and e.acknowledged_at is null
    and (e.incident, e.dag, e.alert) in (select a.incident, a.dag, a.alert from asked a)
    and (e.suppressed is null or e.alert_event_id in (select a.alert_event_id from asked a))
    and case when e.dataset_id is not null then e.dataset_id <> all($5::text[])
      else concat(e.subject->>'dag', '/', e.subject->>'job') <> all($6::text[]) end
  order by e.alert_event_id for update
)
update alert_events e set acknowledged_at = tp_now(), acknowledged_by = $8
from chosen c where e.alert_event_id = c.alert_event_id
returning e.alert_event_id as alert_id, e.key, e.incident, e.occurrence, e.suppressed

-- name: states
-- How these alerts stand.
select e.alert_event_id as alert_id, case when e.retracted_at is not null then 'retracted'
  when e.acknowledged_at is not null then 'acknowledged' end as state
from alert_events e
where e.org_id = $1 and e.alert_event_id = any($2::uuid[])
  and case when e.dataset_id is not null then e.dataset_id <> all($3::text[])
      else concat(e.subject->>'dag', '/', e.subject->>'job') <> all($4::text[]) end

-- name: known
-- Alerts that are deployed, and those that were found some time: what they are about, and the columns of their subjects.
select k.name as dag, j.definition->'config'->>'alert' as alert, j.definition->'config'->>'dataset' as dataset_id,
  j.definition->'config'->'subject' as subject
from jobs j join dags k using (dag_id)
where k.org_id = $1 and j.operator = $2 and j.routed and not j.building
union all
select e.dag, e.alert, e.dataset_id, null from (
  select distinct dag, alert, dataset_id from alert_events where org_id = $1) e
where not exists (select 1 from jobs j join dags k using (dag_id)
                  where k.org_id = $1 and k.name = e.dag and j.operator = $2 and j.routed and not j.building
                    and j.definition->'config'->>'alert' = e.alert and j.definition->'config'->>'dataset' = e.dataset_id)
order by 1, 2

-- name: lock_silences
-- Silences of an organization are made one at a time, so that each counts those before it.
select pg_advisory_xact_lock(1635151216, hashtext($1::uuid::text))

-- name: silence
-- Alerts that are not sent for a while; none, if as many silences hold as may.
insert into alert_silences (org_id, dag, alert, subject, ends_at, reason, created_by)
select $1, $2, $3, $4, tp_now() + $5::interval, $6, $7
where (select count(*) from alert_silences where org_id = $1 and ends_at > tp_now()) < $8
returning silence_id, dag, alert, subject, ends_at, reason, created_at, created_by

-- name: silences
-- Those that hold now, newest first.
select silence_id, dag, alert, subject, ends_at, reason, created_at, created_by
from alert_silences where org_id = $1 and ends_at > tp_now() order by silence_id desc

-- name: unsilence
-- Ends a silence now.
update alert_silences set ends_at = tp_now() where org_id = $1 and silence_id = $2

-- name: generations
-- All generations of datasets.
select d.dataset_id, g.generation_id from datasets d join generations g using (dataset_uuid)
where d.org_id = $1 and d.dataset_id = any($2::text[]) and g.data_generation_id is null

-- name: has_marks
-- Whether any column of an organization's datasets is marked as personal data.
select exists (select 1 from datasets d where d.org_id = $1 and d.definition->'columns' @> '[{"pii": true}]')
  or exists (select 1 from dag_versions v join dags n using (dag_id) join dag_version_datasets m using (dag_version_id)
    where n.org_id = $1 and v.activated_at is not null and m.definition->'columns' @> '[{"pii": true}]')
