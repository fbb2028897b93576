-- Events as people look at them, and what they caused. Nothing here changes or locks a row, and nothing looks at more
-- rows than it was told.

-- name: newest_id
-- The number of the newest event of any organization. Numbers say little: they grow with every event that is tried.
select coalesce(pg_sequence_last_value('events_event_id_seq'), 0) as newest

-- name: recent
-- Events with numbers from $2 to $3, newest first.
select e.event_id, d.dataset_id, e.kind::text as kind, e.partition_key, e.range_start, e.emission, e.backfill, e.created_at,
       e.producer_id, e.generation_id = d.current_generation_id as serving
from events e join datasets d using (dataset_uuid) join orgs o using (org_id)
where o.slug = $1 and e.event_id between $2 and $3 and ($4::text is null or d.dataset_id = $4)
  and ($5::text is null or e.kind::text = $5) and d.dataset_id <> all($6::text[])
order by e.event_id desc limit $7

-- name: of_positions
-- Events of a dataset whose scopes begin from $3 to $4, by position.
select e.event_id, d.dataset_id, e.kind::text as kind, e.partition_key, e.range_start, e.emission, e.backfill, e.created_at,
       e.producer_id, e.generation_id = d.current_generation_id as serving
from datasets d join orgs o using (org_id) join generations g using (dataset_uuid) cross join lateral (
  (select * from events c where c.generation_id = g.generation_id and c.partition_key is null
     and c.range_start between $3 and $4 and ($5::text is null or c.kind::text = $5)
   order by c.range_start desc, c.event_id desc limit $6)
  union all
  (select * from events p where p.generation_id = g.generation_id and p.partition_key is not null
     and p.range_start between $3 and $4 and ($5::text is null or p.kind::text = $5)
   order by p.range_start desc, p.event_id desc limit $6)
) e
where o.slug = $1 and d.dataset_id = $2
order by e.range_start desc, e.event_id desc limit $6

-- name: produced
-- Events of each task, some of them: in the order of the index.
select e.event_id, d.dataset_id, e.kind::text as kind, e.partition_key, e.range_start, e.emission, e.backfill, e.created_at,
       e.producer_id, e.generation_id = d.current_generation_id as serving
from unnest($2::uuid[]) u (task_id) cross join lateral (
  select * from events e where e.producer_id = u.task_id
  order by e.producer_id, e.generation_id, e.scope_key, e.kind, e.emission limit $3
) e join datasets d using (dataset_uuid) join orgs o using (org_id)
where o.slug = $1 and d.dataset_id <> all($4::text[])
order by e.producer_id, e.generation_id, e.scope_key, e.kind, e.emission

-- name: produced_after
-- The next events of a task, behind one of them.
select e.event_id, d.dataset_id, e.kind::text as kind, e.partition_key, e.range_start, e.emission, e.backfill, e.created_at,
       e.producer_id, e.generation_id = d.current_generation_id as serving
from events a cross join lateral (
  select * from events e
  where e.producer_id = $2 and (e.producer_id, e.generation_id, e.scope_key, e.kind, e.emission)
      > (a.producer_id, a.generation_id, a.scope_key, a.kind, a.emission)
  order by e.producer_id, e.generation_id, e.scope_key, e.kind, e.emission limit $3
) e join datasets d on d.dataset_uuid = e.dataset_uuid join orgs o using (org_id)
where o.slug = $1 and a.event_id = $4 and a.producer_id = $2 and d.dataset_id <> all($5::text[])
order by e.producer_id, e.generation_id, e.scope_key, e.kind, e.emission

-- name: inputs_fed
-- Through which input of its job each task was fed.
select distinct f.task_id, i.input_index
from unnest($1::uuid[]) u (task_id) join task_inputs f using (task_id) join events e using (event_id)
join job_inputs i on i.job_id = f.job_id and i.generation_id = e.generation_id

-- name: announced
-- Events that jobs of the dispatcher sent in their own name because of tasks: a batch that became full, a scope that became
-- ready. They name a task when they are a correction. The first event of a scope names none: it is one of those that the
-- task concerns ($3 to $4) and was sent when the task was done, or later. Of each task $5 events are looked at.
select u.task_id, e.event_id, d.dataset_id, e.kind::text as kind, e.partition_key, e.range_start, e.emission, e.backfill,
       e.created_at, e.producer_id, e.generation_id = d.current_generation_id as serving
from unnest($2::uuid[], $3::bigint[], $4::bigint[]) u (task_id, first, last)
join tasks t using (task_id) join job_outputs o using (job_id)
cross join lateral (select coalesce((
  select least(range_end::numeric - range_start, 9223372036854775807) from known_scopes k
  where k.job_id = t.job_id and range_end > range_start order by range_end::numeric - range_start desc limit 1), 0) as length
) widest cross join lateral (
  (select * from events c where c.generation_id = o.generation_id and c.partition_key is null
     and c.range_start between u.first and u.last order by c.range_start, c.event_id limit $5)
  union all
  (select * from events p where p.generation_id = o.generation_id and p.partition_key is not null
     and p.range_start between greatest(u.first - widest.length, -9223372036854775808)::bigint and u.last
   order by p.range_start, p.event_id limit $5)
) e join datasets d on d.dataset_uuid = e.dataset_uuid join orgs g using (org_id)
where g.slug = $1 and d.dataset_id <> all($6::text[]) and e.producer_id = t.job_id and e.range_end >= u.first
  and (e.emission = 'task:' || t.task_id::text or e.emission = '' and e.created_at >= t.finished_at)
order by u.task_id, e.range_start, e.event_id

-- name: by_id
-- One event.
select e.event_id, d.dataset_id, e.kind::text as kind, e.partition_key, e.range_start, e.emission, e.backfill, e.created_at,
       e.producer_id, e.generation_id = d.current_generation_id as serving
from events e join datasets d using (dataset_uuid) join orgs o using (org_id)
where o.slug = $1 and e.event_id = $2

-- name: of_commit
-- Events that tell of a commit.
select e.event_id, d.dataset_id, e.kind::text as kind, e.partition_key, e.range_start, e.emission, e.backfill, e.created_at,
       e.producer_id, e.generation_id = d.current_generation_id as serving
from dataset_commits c join events e on e.producer_id = c.task_id and e.generation_id = c.generation_id and e.scope_key = c.scope_key
join datasets d using (dataset_uuid) join orgs o using (org_id)
where o.slug = $1 and c.commit_id = $2
order by e.event_id desc limit $3

-- name: fed
-- Tasks that each event fed, some of them: in the order of their jobs, behind the job $4.
select i.event_id, i.job_id, t.task_id, d.name as dag, j.name as job, t.state, t.kind::text as kind, t.partition_key, t.range_start,
       t.range_end, t.attempt, j.max_attempts + t.granted_attempts as max_attempts, t.created_at, t.started_at, t.finished_at,
       j.runtime
from unnest($2::bigint[]) u (event_id) cross join lateral (
  select * from task_inputs i where i.event_id = u.event_id and ($4::uuid is null or i.job_id > $4)
    and i.job_id <> all($5::uuid[])
  order by i.job_id limit $3
) i join tasks t using (task_id) join jobs j on j.job_id = t.job_id join dags d using (dag_id) join orgs o using (org_id)
where o.slug = $1 order by i.event_id, i.job_id

-- name: task
-- One task.
select null::bigint as event_id, t.job_id, t.task_id, d.name as dag, j.name as job, t.state, t.kind::text as kind, t.partition_key,
       t.range_start, t.range_end, t.attempt, j.max_attempts + t.granted_attempts as max_attempts, t.created_at, t.started_at,
       t.finished_at, j.runtime
from tasks t join jobs j using (job_id) join dags d using (dag_id) join orgs o using (org_id)
where o.slug = $1 and t.task_id = $2 and t.job_id <> all($3::uuid[])

-- name: commits
-- Commits of each task, the first of them.
select c.task_id, c.commit_id, d.dataset_id, c.partition_key, c.range_start, c.row_count, c.bytes, c.committed_at
from unnest($2::uuid[]) u (task_id) cross join lateral (
  select c.task_id, c.commit_id, c.generation_id, c.partition_key, c.range_start, c.row_count, c.bytes, c.committed_at
  from dataset_commits c where c.task_id = u.task_id order by c.output_index, c.scope_key limit $3
) c join generations g using (generation_id) join datasets d using (dataset_uuid) join orgs o using (org_id)
where o.slug = $1 and d.dataset_id <> all($4::text[])
order by c.commit_id

-- name: count_fed
-- How many tasks each event fed, counted up to a limit.
select u.event_id, (select count(*) from (select 1 from task_inputs i where i.event_id = u.event_id
  and i.job_id <> all($3::uuid[]) limit $2) x) as number
from unnest($1::bigint[]) u (event_id)

-- name: count_produced
-- How many events each task produced, counted up to a limit.
select u.task_id, (select count(*) from (select 1 from events e where e.producer_id = u.task_id limit $2) x) as number
from unnest($1::uuid[]) u (task_id)

-- name: producers
-- The jobs of tasks among the producers of events; the others are voices of sources.
select t.task_id, d.name as dag, j.name as job
from tasks t join jobs j using (job_id) join dags d using (dag_id) join orgs o using (org_id)
where o.slug = $1 and t.task_id = any($2::uuid[]) and t.job_id <> all($3::uuid[])
