-- How a version meters its jobs stands beside them, so that moving to it takes nothing but what the database holds.

alter table dag_version_jobs
  add column priority smallint, add column max_concurrency int, add column dispatch_window int,
  add column max_queue_depth int, add column max_queue_age interval, add column timeout interval,
  add column lease interval, add column max_attempts int, add column retry_base interval, add column retry_max interval;

-- What an old definition does not say is as the job has it now.
update dag_version_jobs v set
  priority = case e.said->>'priority' when 'backfill' then 1 when 'normal' then 0 else e.priority end,
  max_concurrency = (e.said->>'max_concurrency')::int,
  dispatch_window = e.dispatch_window,
  max_queue_depth = (e.said->>'max_queue_depth')::int,
  max_queue_age = make_interval(secs => (e.said->>'max_queue_age_seconds')::float8),
  timeout = coalesce(make_interval(secs => (e.said->>'timeout_seconds')::float8), e.timeout),
  lease = coalesce(make_interval(secs => (e.said->>'lease_seconds')::float8), e.lease),
  max_attempts = coalesce((e.said->>'max_attempts')::int, e.max_attempts),
  retry_base = coalesce(make_interval(secs => (e.said->>'retry_base_seconds')::float8), e.retry_base),
  retry_max = coalesce(make_interval(secs => (e.said->>'retry_max_seconds')::float8), e.retry_max)
from (
  select m.dag_version_id, j.*, said.value->'execution' as said
  from dag_version_jobs m join jobs j using (job_id) join dag_versions w using (dag_version_id)
  left join lateral jsonb_array_elements(w.spec->'jobs') said on said.value->>'name' = j.name
) e where e.dag_version_id = v.dag_version_id and e.job_id = v.job_id;

alter table dag_version_jobs
  alter column priority set not null, alter column dispatch_window set not null, alter column timeout set not null,
  alter column lease set not null, alter column max_attempts set not null, alter column retry_base set not null,
  alter column retry_max set not null;

-- Pointers are copied from versions and replays made from inputs of jobs, which carry the same references; checking
-- them again was a third of the time of a move.
alter table replays drop constraint replays_job_id_fkey, drop constraint replays_generation_id_fkey;
alter table datasets drop constraint datasets_current_generation_id_fkey;

-- A move looks at what one DAG has, however many there are.
create index datasets_by_dag on datasets (dag_id);
create index jobs_routed_by_dag on jobs (dag_id) where routed;
