-- What the platform itself alerts on: by organization, what it is about and more of it.

-- name: lock
-- Whether this process looks now; another one may be at it.
select pg_try_advisory_xact_lock(hashtextextended('platform alerts', 38))

-- name: dead_tasks
-- Jobs with tasks that used up their attempts and that nobody has dealt with.
select d.org_id, jsonb_build_object('dag', d.name, 'job', j.name) as subject,
  jsonb_build_object('tasks', count(*), 'code', max(t.error->>'code')) as fields
from dead_tasks t join jobs j using (job_id) join dags d using (dag_id)
where t.standing = 'open' and j.routed group by d.org_id, d.name, j.name

-- name: queue_age
-- Jobs whose oldest task has waited longer than some seconds, unless somebody paused them.
select d.org_id, jsonb_build_object('dag', d.name, 'job', j.name) as subject,
  jsonb_build_object('minutes', floor(extract(epoch from tp_now() - w.oldest) / 60)::int) as fields
from jobs j join dags d using (dag_id)
join lateral (
  select least(
    (select t.ready_at from tasks t where t.job_id = j.job_id and t.stage = 0 and t.priority = 0
     order by t.ready_at limit 1),
    (select min(t.ready_at) from tasks t where t.job_id = j.job_id and t.stage = 1 and t.priority = 0
     and t.state = 'dispatched')) as oldest
) w on true
where j.routed and not j.building and w.oldest < tp_now() - $1 * interval '1 second'
  and not exists (select 1 from job_pauses p where p.dag_id = j.dag_id and p.job = j.name)

-- name: failing_sources
-- Sources that always run, and have failed several times in a row.
select d.org_id, jsonb_build_object('dag', d.name, 'job', j.name) as subject,
  jsonb_build_object('code', t.error->>'code') as fields
from jobs j join dags d using (dag_id) join tasks t on t.job_id = j.job_id and t.dedupe_key = 'source'
where j.routed and j.source_kind = 'always_on' and t.error is not null and t.state <> 'running'
  and not exists (select 1 from job_pauses p where p.dag_id = j.dag_id and p.job = j.name)

-- name: failed_checks
-- What new outputs do not meet, until they are replaced by some that do. History that was computed again counts as
-- known: it begins no alert, and ends none that it does not meet either.
select d.org_id, s.subject, jsonb_build_object('problem', f.problem, 'rows', f.rows) as fields
from check_failures f join datasets d on d.dataset_uuid = f.dataset_uuid and d.current_generation_id = f.generation_id
join tasks t on t.task_id = f.task_id
cross join lateral (
  select jsonb_build_object('dataset', d.dataset_id, 'check', f.name,
    'scope', coalesce(f.partition_key, case when f.range_start = f.range_end then f.range_start::text
                                            else f.range_start || '-' || f.range_end end)) as subject
) s
where (not t.backfill or exists (
  select 1 from alert_events a where a.org_id = d.org_id and a.dag = '' and a.alert = 'failed_check'
    and a.retracted_at is null and a.subject = s.subject))
and exists (
  select 1 from dataset_commits c where c.generation_id = f.generation_id and c.task_id = f.task_id
    and c.superseded_by is null)

-- name: stale_datasets
-- Datasets that got no rows for longer than they should.
select d.org_id, jsonb_build_object('dataset', d.dataset_id, 'check', f.name) as subject,
  jsonb_build_object('problem', f.problem) as fields
from (select distinct on (dataset_uuid, name) * from check_failures where task_id is null
      order by dataset_uuid, name, failure_id desc) f
join datasets d on d.dataset_uuid = f.dataset_uuid
where not f.recovered and d.definition->'checks' @> jsonb_build_array(jsonb_build_object('kind', 'freshness', 'name', f.name))

-- name: dead_deliveries
-- Channels with messages that could not be delivered.
select c.org_id, jsonb_build_object('channel', c.name) as subject,
  jsonb_build_object('messages', count(*), 'code', max(d.failure->>'code')) as fields
from alert_deliveries d join channels c using (channel_id) where d.state = 'dead' group by c.org_id, c.name

-- name: first_org
-- The organization that is told of what concerns the whole platform: the oldest one.
select org_id from orgs order by org_id limit 1

-- name: open_alerts
-- The organizations with alerts of the platform that have not ended.
select distinct org_id, alert from alert_events where dag = '' and retracted_at is null

-- name: platform_channels
-- The channels that get the platform's alerts.
select org_id, name from channels where platform_alerts
