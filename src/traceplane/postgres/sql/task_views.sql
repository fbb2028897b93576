-- What people see of tasks. Nothing here changes or locks a row.

-- name: deaths
-- Dead tasks that nobody has acknowledged, of an organization or of one of its DAGs, by job, by what they still need and
-- by error, with the newest of each; of every job the newest $2 are looked at.
with recursive concerned as (  -- from one job to the next, past all tasks of each
  (select job_id from tasks where stage = 3 and acknowledged_at is null order by job_id limit 1)
  union all
  select n.job_id from concerned c cross join lateral (
    select job_id from tasks where stage = 3 and acknowledged_at is null and job_id > c.job_id order by job_id limit 1) n
), asked as materialized (  -- before any of their tasks is looked at
  select j.job_id, j.name as job, d.name as dag
  from concerned join jobs j using (job_id) join dags d using (dag_id) join orgs o using (org_id)
  where o.slug = $1 and ($3::text is null or d.name = $3)
), found as (
  select a.dag, a.job, a.job_id, t.standing, t.error->>'code' as code, count(*) as tasks,
         (array_agg(t.task_id order by t.task_id desc))[1] as task_id
  from asked a cross join lateral (
    select * from dead_tasks x where x.job_id = a.job_id and x.acknowledged_at is null order by x.task_id desc limit $2
  ) t
  group by a.dag, a.job, a.job_id, t.standing, t.error->>'code'
)
select f.dag, f.job, f.standing, f.code, f.tasks, f.task_id, t.error, t.partition_key, t.range_start,
       sum(f.tasks) over (partition by f.job_id) >= $2 as capped
from found f join tasks t using (task_id) order by f.dag, f.job, f.tasks desc

-- name: list
-- Tasks for people, newest first. Planned for each call, since the best index depends on the filter. How those that are
-- dead stand is found out for those that are returned, unless it is asked for.
with page as materialized (
  select t.task_id, d.name as dag, j.name as job, t.state, t.stage, t.kind, t.partition_key, t.range_start, t.range_end,
         t.attempt, j.max_attempts + t.granted_attempts as max_attempts, t.priority, t.worker_id, t.created_at,
         t.started_at, t.finished_at, t.error, t.progress, t.cancel_requested
  from tasks t join jobs j using (job_id) join dags d using (dag_id) join orgs o using (org_id)
  where o.slug = $8 and ($1::text is null or d.name = $1) and ($2::text is null or j.name = $2)
    and ($3::task_state is null or t.state = $3) and ($7::smallint is null or t.stage = $7)
    and ($4::uuid is null or t.task_id = $4) and ($6::uuid is null or t.task_id < $6)
    and ($9::text is null or t.stage = 3
      and (select standing from dead_tasks x where x.task_id = t.task_id and t.stage = 3 offset 0) = $9)
    and ($10::bigint is null or t.range_end >= $10) and ($11::bigint is null or t.range_start <= $11)
    and t.job_id <> all($12::uuid[])
  order by t.task_id desc limit $5
)
select p.task_id, p.dag, p.job, p.state, p.kind, p.partition_key, p.range_start, p.range_end, p.attempt, p.max_attempts,
       p.priority, p.worker_id, p.created_at, p.started_at, p.finished_at, p.error, p.progress, p.cancel_requested,
       x.standing
from page p left join lateral (
  select standing from dead_tasks where task_id = p.task_id and p.stage = 3 offset 0) x on true
order by p.task_id desc

-- name: jobs_of
-- The jobs of tasks.
select t.task_id, d.name as dag, j.name as job
from tasks t join jobs j using (job_id) join dags d using (dag_id) join orgs o using (org_id)
where t.task_id = any($1::uuid[]) and o.slug = $2

-- name: counts
-- The unfinished tasks of an organization, or of one of its DAGs, per job and state: their number, how many wait for a
-- retry, the newest of those, and how long the first has been due. With what holds the job. Tasks are counted by indexes
-- alone where they wait, since there may be a million of a few jobs, and before they are joined.
with asked as (
  select j.job_id from jobs j join dags d using (dag_id) where d.name = $2
), counted as (
  select w.job_id, 'queued'::task_state as state, w.tasks, w.due_at, coalesce(r.tasks, 0) as retrying, r.newest_retry
  from (select job_id, count(*) as tasks, min(ready_at) as due_at from tasks
        where stage = 0 and ($2::text is null or job_id in (select job_id from asked)) group by job_id) w
  left join (
    select job_id, count(*) as tasks, max(task_id::text) as newest_retry from tasks
    where stage = 0 and attempt > 0 and error is not null group by job_id) r using (job_id)
  union all
  select job_id, state, count(*), min(ready_at), 0, null from tasks
  where stage = 1 and ($2::text is null or job_id in (select job_id from asked)) group by job_id, state
)
select d.name as dag, j.name as job, j.runtime, t.state, t.tasks, t.retrying, t.newest_retry::uuid as newest_retry,
       extract(epoch from tp_now() - t.due_at)::float8 as due_seconds, h.level as hold_level, cj.name as hold_job,
       exists (select 1 from job_pauses p where p.dag_id = d.dag_id and p.job = j.name) as paused,
       coalesce(j.requires, '{}') as requires
from counted t join jobs j using (job_id) join dags d using (dag_id) join orgs o using (org_id)
left join job_holds h using (job_id) left join jobs cj on cj.job_id = h.caused_by
where o.slug = $1

-- name: runtimes_at_work
-- Runtimes with a worker that is running a task, of any organization.
select distinct j.runtime from tasks t join jobs j using (job_id) where t.stage = 1 and t.state = 'running'

-- name: depths
-- Unfinished tasks per job and state, of all organizations together, and how old they are, for gauges.
select d.name as dag, j.name as job, t.state, sum(t.tasks)::bigint as tasks,
       extract(epoch from tp_now() - min(t.oldest))::float8 as oldest_seconds
from (  -- counted before they are joined: thousands of tasks are of a few jobs
  select job_id, state, count(*) as tasks, min(created_at) as oldest from tasks where stage = 0 or stage = 1 group by 1, 2
) t join jobs j using (job_id) join dags d using (dag_id)
group by d.name, j.name, t.state

-- name: explain_facts
-- Everything that could make a task wait, in one row.
select t.task_id, t.state, t.attempt, j.max_attempts + t.granted_attempts as max_attempts, t.cancel_requested,
       t.worker_id, t.error, t.progress->>'spark_ui' as spark_ui,
       j.name as job, d.name as dag, j.operator, j.runtime, j.max_concurrency, j.dispatch_window, j.routed,
       j.source_kind, j.definition ? 'code_bundle' and j.definition->>'code_bundle' is not null as code_deployed,
       t.priority, t.partition_key, t.range_start,
       (select x.standing from dead_tasks x where x.task_id = t.task_id) as standing,
       extract(epoch from t.ready_at - tp_now())::float8 as ready_in_seconds,
       extract(epoch from tp_now() - t.dispatched_at)::float8 as dispatched_seconds,
       extract(epoch from tp_now() - t.started_at)::float8 as running_seconds,
       extract(epoch from t.lease_expires_at - tp_now())::float8 as lease_seconds,
       t.resends,
       (select count(*) from tasks f where f.job_id = t.job_id and f.stage = 1) as in_flight,
       (select count(*) from tasks q where q.job_id = t.job_id and q.stage = 0
          and (q.priority, q.ready_at, q.task_id) < (t.priority, t.ready_at, t.task_id)) as ahead,
       (select b.task_id from tasks b where b.job_id = t.job_id and b.scope_key = t.scope_key
          and b.stage = 1 and b.task_id <> t.task_id limit 1) as scope_held_by,
       h.level as hold_level, h.path as hold_path, cj.name as hold_job, p.metric as hold_metric,
       p.figure as hold_figure, p.threshold as hold_threshold,
       exists (select 1 from outbox o where t.task_id = any(o.task_ids)) as in_outbox,
       j.backfill_concurrency,
       (select count(*) from tasks f where f.job_id = t.job_id and f.stage = 1 and f.priority = 1) as backfill_in_flight,
       z.paused_by, z.reason as pause_reason, z.since as paused_since, coalesce(j.requires, '{}') as requires,
       (select (select count(*) from buffered_reports a where a.generation_id = b.generation_id and a.failed_at is null
                  and a.report_id < b.report_id)
        from buffered_reports b where b.task_id = t.task_id and b.failed_at is null) as buffer_ahead,
       (select b.failure->>'code' from buffered_reports b where b.task_id = t.task_id and b.failed_at is null)
         as buffer_error,
       exists (select 1 from buffered_reports b where b.task_id = t.task_id and b.attempt = t.attempt
                 and b.failed_at is not null) as dead_letter
from tasks t join jobs j using (job_id) join dags d using (dag_id) join orgs o using (org_id)
left join job_holds h using (job_id) left join jobs cj on cj.job_id = h.caused_by
left join job_pressure p on p.job_id = h.caused_by
left join job_pauses z on z.dag_id = j.dag_id and z.job = j.name and j.routed
where t.task_id = $1 and o.slug = $2

-- name: handed_values
-- The values that operators of tasks received: the config of their job, and the parameters of their pipeline.
select j.definition->'config' as config, p.config->'parameters' as parameters, array_agg(t.task_id) as task_ids
from tasks t join jobs j using (job_id) join dags d using (dag_id) join orgs o using (org_id)
left join executions e on e.execution_id = t.task_id left join pipelines p using (pipeline_id)
where t.task_id = any($1::uuid[]) and o.slug = $2
group by j.job_id, p.pipeline_id

-- name: whole_reads
-- What the last attempt of a task saw of the datasets that it reads as a whole.
select d.dataset_id, r.commit_id, c.committed_at,
  (select count(*) from dataset_commits n where n.generation_id = r.generation_id and n.superseded_by is null
     and coalesce(n.holds_commit, n.commit_id) > coalesce(r.commit_id, 0)) as newer
from task_reads r join generations g using (generation_id) join datasets d using (dataset_uuid) join orgs o using (org_id)
left join dataset_commits c on c.commit_id = r.commit_id
where r.task_id = $1 and o.slug = $2 order by r.input_index

-- name: lineage
-- What fed a task, and what it produced.
select 'input' as side, e.event_id, d.dataset_id, e.kind, e.partition_key, e.range_start, e.range_end, e.producer_id
from task_inputs i join events e using (event_id) join datasets d using (dataset_uuid) join orgs o using (org_id)
where i.task_id = $1 and o.slug = $2
union all
select 'output', e.event_id, d.dataset_id, e.kind, e.partition_key, e.range_start, e.range_end, e.producer_id
from events e join datasets d using (dataset_uuid) join orgs o using (org_id)
where e.producer_id = $1 and o.slug = $2
order by 1, 2
