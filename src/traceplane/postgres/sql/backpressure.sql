-- The figures the valve decides by, and what it decided.

-- name: idle
-- Whether no job has a threshold and none is held: there is nothing to decide.
select not exists (select 1 from jobs where routed and (max_queue_depth is not null or max_queue_age is not null))
   and not exists (select 1 from job_pressure) and not exists (select 1 from job_holds)

-- name: figures
-- Queue depth and age of every job that has a threshold. Counting stops a little above the threshold.
select j.job_id, j.max_queue_depth, extract(epoch from j.max_queue_age)::float8 as max_queue_age_seconds,
  (select count(*) from (select 1 from tasks t where t.job_id = j.job_id and t.stage = 0
     limit coalesce(j.max_queue_depth::bigint * 2, 0)) q)
  + (select count(*) from (select 1 from tasks t where t.job_id = j.job_id and t.stage = 1
     and t.state = 'dispatched' limit coalesce(j.max_queue_depth::bigint * 2, 0)) f) as depth,
  coalesce((select extract(epoch from tp_now() - t.created_at)::float8 from tasks t
     where t.job_id = j.job_id and t.stage = 0 and j.max_queue_age is not null
     order by t.priority, t.ready_at limit 1), 0) as age_seconds,
  coalesce(p.level, 0) as level
from jobs j left join job_pressure p using (job_id)
where j.routed and not j.building and (j.max_queue_depth is not null or j.max_queue_age is not null)

-- name: edges
-- Which job feeds which: producer -> consumer.
select distinct o.job_id as producer, i.job_id as consumer
from job_outputs o join job_inputs i on i.generation_id = o.generation_id and i.role <> 'reads'
join jobs pj on pj.job_id = o.job_id and pj.routed
join jobs cj on cj.job_id = i.job_id and cj.routed

-- name: names
-- Job names, for messages.
select job_id, name from jobs where job_id = any($1::uuid[])

-- name: store_pressure
-- Replaces the pressure table; `since` survives for jobs that stay under pressure.
with wanted as materialized (
  select * from unnest($1::uuid[], $2::smallint[], $3::text[], $4::float8[], $5::float8[])
    as w (job_id, level, metric, figure, threshold)
), gone as (
  delete from job_pressure p where not exists (select 1 from wanted w where w.job_id = p.job_id)
)
insert into job_pressure (job_id, level, metric, figure, threshold, since)
select job_id, level, metric, figure, threshold, tp_now() from wanted order by job_id
on conflict (job_id) do update set level = excluded.level, metric = excluded.metric, figure = excluded.figure,
  threshold = excluded.threshold

-- name: store_holds
-- Replaces the holds; returns how many jobs were released, so that the valve runs again.
with wanted as materialized (
  select w.job_id, w.level, w.caused_by, string_to_array(w.path, ' ') as path
  from unnest($1::uuid[], $2::smallint[], $3::uuid[], $4::text[]) as w (job_id, level, caused_by, path)
), gone as (
  delete from job_holds h where not exists (select 1 from wanted w where w.job_id = h.job_id) returning 1
), held as (
  insert into job_holds (job_id, level, caused_by, path, since)
  select job_id, level, caused_by, path, tp_now() from wanted order by job_id
  on conflict (job_id) do update set level = excluded.level, caused_by = excluded.caused_by, path = excluded.path
  where (job_holds.level, job_holds.caused_by) is distinct from (excluded.level, excluded.caused_by)
  returning 1
)
select (select count(*) from gone) as released, (select count(*) from held) as changed

-- name: one_at_a_time
-- Only one dispatcher recomputes holds at a time; the others skip it.
select pg_try_advisory_xact_lock(7203116)
