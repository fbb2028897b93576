-- What is on its way to an alert: in any job between it and its sources, in this version or left by another one.

-- name: behind
-- Jobs behind retired ones, with the ones that route the same alert from now on: readers of what they wrote, and those
-- of other DAGs, which read the same datasets from the new jobs.
with recursive behind as (
  select job_id from unnest($1::uuid[]) as r (job_id)
  union
  select x.job_id from behind b cross join lateral (
    select i.job_id from job_outputs o join job_inputs i using (generation_id) join jobs n on n.job_id = i.job_id
    where o.job_id = b.job_id and i.role <> 'reads' and (n.routed or n.job_id = any($1))
    union all
    select i.job_id from job_outputs o join datasets d using (dataset_uuid)
    join job_inputs i on i.generation_id = d.current_generation_id join jobs n on n.job_id = i.job_id
    where o.job_id = b.job_id and i.role <> 'reads' and b.job_id = any($1) and n.routed and n.dag_id <> d.dag_id
  ) x
)
select j.job_id, j.operator = $2 as routes, case when j.routed then j.job_id else n.job_id end as heir
from behind b join jobs j using (job_id)
left join jobs n on j.operator = $2 and n.dag_id = j.dag_id and n.name = j.name and n.operator = $2 and n.routed

-- name: versions_of
-- The jobs that route the same alert as this one, in any version, or ($2) in the one that is being built.
select j.job_id from jobs r join jobs j on j.dag_id = r.dag_id and j.name = r.name
where r.job_id = $1 and j.routed and (j.building or not $2::boolean)

-- name: in_front
-- These jobs, and those between them and their sources.
with recursive upstream as (
  select job_id as route, job_id from unnest($1::uuid[]) as r (job_id)
  union
  select u.route, o.job_id from upstream u join job_inputs i on i.job_id = u.job_id and i.role <> 'reads'
  join job_outputs o using (generation_id)
)
select route, job_id from upstream

-- name: moved
-- Generations that serve no longer in place of which others do now, with the DAG of the dataset.
select distinct o.generation_id, d.current_generation_id
from job_outputs o join datasets d using (dataset_uuid)
where o.job_id = any($1::uuid[]) and d.current_generation_id <> o.generation_id

-- name: unfinished
-- Scopes that jobs have not done: waiting, running, or dead without anybody having dealt with it. Not those of backfills,
-- unless asked for ($2), nor those of these tasks ($3). Those of some jobs ($4) may be about any of their inputs, so it is
-- told of which. As few ranges, or ($5) one by one those of retired jobs, whose dead tasks nobody can retry.
with unfinished as (
  select t.task_id, t.job_id, t.range_start, t.range_end from unnest($1::uuid[]) as j (job_id) join tasks t using (job_id)
  where t.stage = 0 and ($2::boolean or not t.backfill) and t.range_start is not null
  union all
  select t.task_id, t.job_id, t.range_start, t.range_end from unnest($1::uuid[]) as j (job_id) join tasks t using (job_id)
  where t.stage = 1 and ($2::boolean or not t.backfill) and t.range_start is not null
  union all
  select t.task_id, t.job_id, t.range_start, t.range_end from unnest($1::uuid[]) as j (job_id) join dead_tasks t using (job_id)
  where t.acknowledged_at is null and ($2::boolean or not t.backfill) and t.range_start is not null
    and case when $5::boolean then t.standing = 'retired' and not t.superseded else t.standing = 'open' end
), grouped as (
  select u.job_id, e.generation_id, range_agg(coverage_range(u.range_start, u.range_end)) as positions
  from unfinished u
  left join task_inputs i on i.task_id = u.task_id and u.job_id = any($4::uuid[])
  left join events e on e.event_id = i.event_id
  where u.task_id <> all($3::uuid[])
  group by u.job_id, e.generation_id, case when $5 then u.range_start end, case when $5 then u.range_end end
)
select job_id, generation_id, lower(r) as first, coalesce(upper(r) - 1, 9223372036854775807) as last
from grouped cross join unnest(positions) r

-- name: left
-- What other versions have left to these jobs.
select job_id, range_start as first, range_end as last, history from alert_handovers where job_id = any($1::uuid[])

-- name: leave
-- Adds to it.
insert into alert_handovers (job_id, range_start, range_end, history)
select r.*, $4 from unnest($1::uuid[], $2::bigint[], $3::bigint[]) as r on conflict do nothing

-- name: forget
-- What was left to jobs that are retired themselves.
delete from alert_handovers where job_id = any($1::uuid[])

-- name: release
-- Tasks for alerts that only a version had found that did not serve: it does now, so its jobs route them, as they route
-- all others. They are history in all else: nothing has happened at these positions. What an earlier cutover released
-- and nobody has routed since is returned: this version may have yet to look for it.
with routes as materialized (
  select j.job_id, d.org_id, d.name as dag, j.definition->'config'->>'alert' as alert, i.generation_id
  from dags d join jobs j using (dag_id) join job_inputs i using (job_id)
  where d.dag_id = $1 and j.operator = $2 and j.routed and not j.building
), held as materialized (
  select r.job_id, e.alert_event_id, e.position, e.periods, r.generation_id = any(e.generations) as is_ours
  from routes r join alert_events e on e.org_id = r.org_id and e.dag = r.dag and e.alert = r.alert
  where e.suppressed = 'building' and e.retracted_at is null
    and (r.generation_id = any(e.generations) or e.released)
), released as (
  update alert_events e set released = true from held h where e.alert_event_id = h.alert_event_id and not e.released
), routed as (
  insert into tasks (task_id, job_id, state, priority, backfill, kind, range_start, range_end, created_at, ready_at)
  select uuid7(), r.job_id, 'queued', 0, true, 'invalidation', r.position, r.position, tp_now(), tp_now()
  from (select distinct job_id, position from held where is_ours) r
)
select distinct job_id, position, periods from held where not is_ours

-- name: handed_over
-- Whether anything was left to anybody.
select exists (select 1 from alert_handovers)

-- name: some
-- A part of what was left, locked. The order is another one each time, so that those whose jobs stand still do not hold
-- up the others.
select job_id, range_start as first, range_end as last, history
from alert_handovers order by random() limit $1 for update skip locked

-- name: replaying
-- Those of these jobs that are still told of the past.
select job_id from unnest($1::uuid[]) as j (job_id)
where exists (select 1 from replays r where r.job_id = j.job_id) or exists (select 1 from catch_ups c where c.job_id = j.job_id)

-- name: settle
-- Tasks for what was left and has arrived: they compare once more what is there with what was told. Of a range that may
-- be everything, only what is there.
with settled as (
  delete from alert_handovers a
  using unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::boolean[]) as s (job_id, first, last, history)
  where (a.job_id, a.range_start, a.range_end, a.history) = (s.job_id, s.first, s.last, s.history)
  returning a.*
)
insert into tasks (task_id, job_id, state, priority, backfill, kind, range_start, range_end, created_at, ready_at)
select uuid7(), s.job_id, 'queued', 0, s.history, 'invalidation', p.first, p.last, tp_now(), tp_now()
from settled s cross join lateral (
  select s.range_start as first, s.range_end as last where s.range_end::numeric - s.range_start < $5
  union
  select c.range_start, c.range_end from job_inputs i join dataset_commits c using (generation_id)
  where i.job_id = s.job_id and s.range_end::numeric - s.range_start >= $5 and c.superseded_by is null
    and c.range_start <= s.range_end and c.range_end >= s.range_start
) p
returning 1
