-- Checks of datasets that failed without stopping anything.

-- name: generations_written
-- What jobs write.
select job_id, output_index, generation_id from job_outputs where job_id = any($1::uuid[])

-- name: add
-- What outputs that are being committed do not meet.
insert into check_failures (dataset_uuid, generation_id, name, problem, rows, sample, task_id, partition_key, range_start, range_end)
select g.dataset_uuid, g.generation_id, f.name, f.problem, f.rows, f.sample::jsonb, f.task_id, f.partition_key, f.range_start, f.range_end
from unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::uuid[], $7::text[], $8::bigint[], $9::bigint[])
  with ordinality as f (generation_id, name, problem, rows, sample, task_id, partition_key, range_start, range_end, ord)
join generations g using (generation_id) order by f.ord

-- name: newest
-- Failures in the order in which they were written, after a given one.
select f.failure_id, d.org_id, k.name as dag, d.dataset_id, f.generation_id, f.name, f.problem, f.rows, f.sample, f.task_id,
       f.partition_key, f.range_start, f.range_end, f.recovered, f.at
from check_failures f join datasets d using (dataset_uuid) join dags k using (dag_id)
where f.failure_id > $1 order by f.failure_id limit $2

-- name: of_task
-- What the output of a task does not meet.
select f.failure_id, d.org_id, k.name as dag, d.dataset_id, f.generation_id, f.name, f.problem, f.rows, f.sample, f.task_id,
       f.partition_key, f.range_start, f.range_end, f.recovered, f.at
from check_failures f join datasets d using (dataset_uuid) join dags k using (dag_id) join orgs o on o.org_id = d.org_id
where o.slug = $1 and f.task_id = $2 order by f.failure_id

-- name: standing
-- What the rows that readers see now do not meet, and datasets that are stale, by check: in how many scopes, the newest
-- problem, and its task. A check that was removed is not shown.
select x.dataset_id, x.name, count(x.task_id) as scopes, (array_agg(x.problem order by x.failure_id desc))[1] as problem,
       (array_agg(x.task_id order by x.failure_id desc))[1] as task_id
from orgs o cross join lateral (
  select d.dataset_id, d.definition, f.failure_id, f.name, f.problem, f.task_id
  from datasets d join check_failures f on f.generation_id = d.current_generation_id
  where d.org_id = o.org_id and f.task_id is not null and exists (
    select 1 from dataset_commits c
    where c.task_id = f.task_id and c.generation_id = f.generation_id and c.superseded_by is null offset 0)
  union all
  select d.dataset_id, d.definition, f.failure_id, f.name, f.problem, f.task_id
  from datasets d join check_failures f on f.dataset_uuid = d.dataset_uuid and f.task_id is null and not f.recovered
  where d.org_id = o.org_id and d.current_generation_id is not null and not exists (
    select 1 from check_failures n
    where n.dataset_uuid = f.dataset_uuid and n.name = f.name and n.task_id is null and n.failure_id > f.failure_id)
) x
where o.slug = $1 and x.definition->'checks' @> jsonb_build_array(jsonb_build_object('name', x.name))
group by x.dataset_id, x.name order by x.dataset_id, x.name

-- name: lock_freshness
-- One dispatcher at a time looks at it, or two would write the same failure.
select pg_try_advisory_xact_lock(7203119)

-- name: turned
-- Expectations of freshness that turned since they were last looked at: datasets that have become stale, and those that
-- got rows again. Nothing is expected while the job that writes the dataset, or one before it in its DAG, is paused, nor
-- of one that has no rows yet and whose job is still told of the past.
with recursive expected as materialized (
  select d.dataset_uuid, d.dag_id, d.current_generation_id as generation_id, c->>'name' as name,
         (c->>'seconds')::float8 as seconds
  from datasets d cross join lateral jsonb_array_elements(d.definition->'checks') c
  where d.definition->'checks' @> '[{"kind": "freshness"}]' and d.current_generation_id is not null
    and c->>'kind' = 'freshness'
), upstream (generation_id, dag_id, job_id) as (
  select e.generation_id, e.dag_id, x.job_id from expected e join job_outputs x using (generation_id)
  union
  select u.generation_id, u.dag_id, x.job_id
  from upstream u join job_inputs i on i.job_id = u.job_id join job_outputs x on x.generation_id = i.generation_id
  join jobs j on j.job_id = x.job_id and j.dag_id = u.dag_id
), judged as (
  select e.*, k.filled_at,
         coalesce(k.filled_at, g.created_at) < tp_now() - make_interval(secs => e.seconds) as stale,
         coalesce((select not f.recovered from check_failures f
           where f.dataset_uuid = e.dataset_uuid and f.name = e.name and f.task_id is null
           order by f.failure_id desc limit 1), false) as was_stale
  from expected e join generations g using (generation_id) left join generation_cursors k using (generation_id)
  where not exists (
      select 1 from upstream u join jobs j on j.job_id = u.job_id
      join job_pauses p on p.dag_id = j.dag_id and p.job = j.name where u.generation_id = e.generation_id)
    and (k.filled_at is not null or not exists (
      select 1 from upstream u join replays r on r.job_id = u.job_id where u.generation_id = e.generation_id))
)
select dataset_uuid, generation_id, name, seconds, filled_at, stale from judged where stale <> was_stale
order by dataset_uuid, name

-- name: add_freshness
-- Datasets that have become stale, or have rows again.
insert into check_failures (dataset_uuid, generation_id, name, problem, recovered)
select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::boolean[])
