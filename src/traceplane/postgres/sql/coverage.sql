-- Which positions a generation holds.

-- name: add
-- Adds the scopes of completed tasks to the generations their jobs write, whether or not there was something to commit.
with done as (
  select g.generation_id, g.range_start, g.range_end
  from unnest($2::uuid[], $3::bigint[], $4::bigint[]) as g (generation_id, range_start, range_end)
  union all
  select o.generation_id, t.range_start, t.range_end
  from tasks t join jobs j using (job_id) join job_outputs o using (job_id)
  where t.task_id = any($1::uuid[]) and t.range_start is not null and j.activation = 'reactive' and j.runtime <> 'dispatcher'
), sets as (
  select generation_id, coverage_bucket(range_start, range_end) as bucket,
         range_agg(coverage_range(range_start, range_end)) as positions
  from done group by 1, 2 order by 1, 2
)
insert into generation_coverage as c (generation_id, bucket, positions) select generation_id, bucket, positions from sets
on conflict (generation_id, bucket) do update set positions = c.positions + excluded.positions
where not c.positions @> excluded.positions

-- name: lock_serving
-- Blocks commits to the serving generations, so that nothing is added unseen before a version replaces them.
select k.generation_id from generation_cursors k
where k.generation_id in (
  select d.current_generation_id from dag_version_datasets v join datasets d using (dataset_uuid)
  where v.dag_version_id = $1 and d.current_generation_id <> v.generation_id)
order by k.generation_id for no key update

-- name: lacking
-- Per dataset that would get another generation of the same periods: positions of live commits that the new one lacks, and
-- the names of the first few of each range.
select d.dataset_id, lower(p) as first, coalesce(upper(p) - 1, 9223372036854775807) as last,
  d.definition->'partitions' as partitions,
  (select jsonb_object_agg(n.name, n.position) from partition_names n
   where d.definition->'partitions'->>'by' = 'name' and n.org_id = d.org_id and n.position <@ p
     and n.position between lower(p) and lower(p) + $3) as names
from dag_version_datasets v join datasets d using (dataset_uuid)
cross join lateral (select coverage_of(v.generation_id) as held offset 0) new
cross join lateral (
  select range_agg(coverage_range(c.range_start, c.range_end)) - new.held as positions from dataset_commits c
  where c.generation_id = d.current_generation_id and c.superseded_by is null
    and not new.held @> coverage_range(c.range_start, c.range_end)
) gone cross join lateral unnest(gone.positions) p
where v.dag_version_id = $1 and d.current_generation_id <> v.generation_id
  and v.definition->>'sql' is null  -- a virtual dataset stores nothing; its SQL computes its rows
  and same_periods(d.definition->'partitions', v.definition->'partitions')
  and not new.held @> coverage_of(d.current_generation_id)
order by d.dataset_id, p limit $2

-- name: replaced_periods
-- Datasets that would get a generation of other periods: what live commits hold, what the new one holds, and the job of
-- the version that produces it.
select d.dataset_id, d.definition->'partitions' as partitions, v.definition->'partitions' as new_partitions, x.job_id,
  (select jsonb_agg(jsonb_build_array(lower(r), coalesce(upper(r) - 1, 9223372036854775807)) order by r)
   from (select range_agg(coverage_range(c.range_start, c.range_end)) as positions from dataset_commits c
         where c.generation_id = d.current_generation_id and c.superseded_by is null) s, unnest(s.positions) r) as served,
  coalesce((select jsonb_agg(jsonb_build_array(lower(r), coalesce(upper(r) - 1, 9223372036854775807)) order by r)
            from unnest(coverage_of(v.generation_id)) r), '[]') as held,
  (select jsonb_object_agg(n.name, n.position) from partition_names n
   where d.definition->'partitions'->>'by' = 'name' and n.org_id = d.org_id) as names
from dag_version_datasets v join datasets d using (dataset_uuid)
left join lateral (
  select o.job_id from job_outputs o join dag_version_jobs w using (job_id)
  where o.generation_id = v.generation_id and w.dag_version_id = $1 limit 1) x on true
where v.dag_version_id = $1 and d.current_generation_id <> v.generation_id and v.definition->>'sql' is null
  and not same_periods(d.definition->'partitions', v.definition->'partitions')
  and exists (select 1 from dataset_commits c
              where c.generation_id = d.current_generation_id and c.superseded_by is null)
order by d.dataset_id

-- name: had_positions
-- What generations have, or have dropped; of those without rows, the positions of their events count.
select g.generation_id, jsonb_agg(jsonb_build_array(lower(r), coalesce(upper(r) - 1, 9223372036854775807)) order by r) as had
from unnest($1::uuid[]) as a (generation_id) join generations g using (generation_id) join datasets d using (dataset_uuid)
cross join lateral (select v.definition->'partitions' as partitions from dag_version_datasets v
                    where v.generation_id = g.generation_id limit 1) own
cross join lateral unnest(case
  when exists (select 1 from generation_cursors k where k.generation_id = g.generation_id) then coverage_of(g.generation_id)
  else coalesce((select range_agg(coverage_range(e.range_start, e.range_end)) from events e
                 where e.generation_id = g.generation_id), '{}') end
  + case when same_periods(d.definition->'partitions', own.partitions) then dropped_of(g.dataset_uuid) else '{}' end) r
group by g.generation_id

-- name: add_catch_ups
-- Jobs of a version whose datasets get, or have got, another generation than the serving one. One of other periods has
-- other scopes.
insert into catch_ups (job_id, generation_id)
select o.job_id, d.current_generation_id
from dag_version_jobs v join jobs j using (job_id) join job_outputs o using (job_id) join datasets d using (dataset_uuid)
join dag_version_datasets w on w.dag_version_id = v.dag_version_id and w.dataset_uuid = d.dataset_uuid
where v.dag_version_id = $1 and d.current_generation_id <> o.generation_id
  and same_periods(d.definition->'partitions', w.definition->'partitions')
  and j.activation = 'reactive' and j.runtime <> 'dispatcher'
on conflict do nothing

-- name: forget_catch_ups
-- Jobs that no longer need to catch up: those of a version, or the given ones.
delete from catch_ups where job_id = any($1::uuid[])
  or job_id in (select job_id from dag_version_jobs where dag_version_id = $2)

-- name: next_catch_ups
-- Jobs whose replay is complete and that have no queued tasks: next, they catch up on the rest of what is served.
select c.job_id, c.generation_id, j.building, j.routed from catch_ups c join jobs j using (job_id)
where not exists (select 1 from replays r where r.job_id = c.job_id)
  and not exists (select 1 from tasks t where t.job_id = c.job_id and t.stage = 0 offset 0)
  and not exists (  -- a job that only forwards events may still have some for it
    select 1 from job_inputs i join job_outputs o using (generation_id) join jobs p on p.job_id = o.job_id
    where i.job_id = c.job_id and p.runtime = 'dispatcher' and p.routed
      and (exists (select 1 from replays r where r.job_id = p.job_id)
        or exists (select 1 from open_batches b where b.job_id = p.job_id)
        or has_unfinished_tasks(p.job_id)))
order by c.job_id, c.generation_id

-- name: catch_up
-- Tasks for scopes that are or were served, or that a backfill was to compute and has not, that a job lacks, and that
-- have no unfinished task; none while its inputs still have to catch up, since they will emit events for it, and none
-- that read what an input has dropped ($4 to $5).
with unreadable as materialized (
  select coalesce(range_agg(coverage_range(u.first, u.last)), '{}') as positions
  from unnest($4::bigint[], $5::bigint[]) as u (first, last)
), own as materialized (
  select o.generation_id, h.held, h.served, h.dropped, h.held @> h.served as holds_all from job_outputs o
  join generations g on g.generation_id = $2 and g.dataset_uuid = o.dataset_uuid
  cross join lateral (select coverage_of(o.generation_id) as held, coverage_of($2) as served,
                             dropped_of(o.dataset_uuid) as dropped offset 0) h
  where o.job_id = $1
), owed as materialized (  -- no event and no commit names the scopes of a backfill that are unfinished or dead
  select t.partition_key, t.range_start, t.range_end, t.scope_key
  from own cross join job_outputs o cross join lateral (
    select * from tasks t where t.job_id = o.job_id and (t.stage = 0 or t.stage = 1 or t.stage = 3) offset 0) t
  where o.generation_id = $2 and o.job_id <> $1 and t.backfill and t.range_start is not null
    and not own.held + own.served + own.dropped @> coverage_range(t.range_start, t.range_end)
), coming as materialized (
  select coalesce(range_agg(r), '{}') as positions
  from job_inputs i join generations g using (generation_id)
  join generations rows on rows.generation_id = coalesce(g.data_generation_id, g.generation_id)
  join job_outputs o on o.generation_id = rows.generation_id
  join catch_ups c on c.job_id = o.job_id
  join generations other on other.generation_id = c.generation_id and other.dataset_uuid = rows.dataset_uuid
  cross join lateral (
    -- An input that is not read at exactly the task's scope may bring something for any of them.
    select case when i.role = 'reads' then '(,)'::int8range else l end as r
    from unnest(coverage_of(other.generation_id) - coverage_of(rows.generation_id)) l
  ) lacking
  where i.job_id = $1
), size as materialized (  -- a job that is fed with ranges gets only such ranges; the first is cut where the dataset starts
  select range_size_of($1) as positions,
    (select max((d.definition->'partitions'->>'start')::bigint)
     from job_outputs o join datasets d using (dataset_uuid) where o.job_id = $1) as start
), dead as materialized (
  select scope_key from tasks where job_id = $1 and stage = 3
), in_flight as materialized (  -- a batch that was cut elsewhere than in the serving version holds several of its scopes
  select coalesce(range_agg(coverage_range(range_start, range_end)), '{}') as positions
  from tasks where job_id = $1 and stage = 1 and range_start is not null
), wanted as materialized (
  select distinct on (c.range_start, c.scope_key) c.partition_key, c.range_start, c.range_end
  from own cross join coming cross join unreadable cross join in_flight
  cross join lateral (
    select c.partition_key, c.range_start, c.range_end, c.scope_key from live_scopes($2) c
    where not own.holds_all
      and not own.held @> coverage_range(c.range_start, c.range_end)
    union all
    select * from owed offset 0) c
  where not exists (select 1 from tasks t where t.job_id = $1 and t.stage = 0 offset 0)  -- two dispatchers take turns
    and not coming.positions && coverage_range(c.range_start, c.range_end)
    and not unreadable.positions && coverage_range(c.range_start, c.range_end)
    and not exists (select 1 from size s
                    where mod(c.range_end::numeric + 1, s.positions) <> 0 or c.range_end::numeric - c.range_start + 1 > s.positions
                      or (c.range_end::numeric - c.range_start + 1 < s.positions and c.range_start is distinct from s.start))
    and not in_flight.positions && coverage_range(c.range_start, c.range_end)
    and c.scope_key not in (select scope_key from dead)
  order by c.range_start, c.scope_key limit $3
), made as (
  insert into tasks (task_id, job_id, state, priority, backfill, kind, partition_key, range_start, range_end,
                     created_at, ready_at)
  select uuid7(), $1, 'queued', 1, true, 'data', partition_key, range_start, range_end, tp_now(), tp_now()
  from wanted order by range_start
)
select (select count(*) from wanted) as made,
  exists (select 1 from own, unreadable u where not held @> served - u.positions) or exists (select 1 from wanted) as lacks

-- name: end_catch_up
-- The job has caught up. Until then, downstream jobs know that more may come.
delete from catch_ups where job_id = $1 and generation_id = $2

-- name: of_datasets
-- What readers of an organization's datasets, or of those named, have: first and last position, the gaps between, and
-- scopes whose task is dead and that nothing else covers. Executions of pipelines have their own positions, so there are
-- no gaps between them.
with served as materialized (
  select d.org_id, d.dataset_id, d.dataset_uuid, d.current_generation_id as generation_id, j.job_id,
         d.definition->'partitions' as partitions
  from datasets d join orgs o using (org_id)
  join job_outputs x on x.generation_id = d.current_generation_id
  join jobs j on j.job_id = x.job_id and j.routed and not j.building and j.source_kind is distinct from 'pipeline'
  where o.slug = $1 and ($2::text[] is null or d.dataset_id = any($2))
), covered as (
  select c.generation_id, range_agg(r) as held
  from generation_coverage c join (select distinct generation_id from served) s using (generation_id), unnest(c.positions) r
  group by c.generation_id
), ever as (
  select p.dataset_uuid, range_agg(r) as dropped
  from dropped_positions p join (select distinct dataset_uuid from served) s using (dataset_uuid), unnest(p.positions) r
  group by p.dataset_uuid
), known as materialized (
  select s.*, coalesce(c.held, '{}') as held, coalesce(e.dropped - coalesce(c.held, '{}'), '{}') as dropped
  from served s left join covered c using (generation_id) left join ever e using (dataset_uuid)
), lost as (
  select k.dataset_uuid, count(distinct t.scope_key) as dead
  from known k join tasks t using (job_id)
  where t.stage = 3 and not k.held @> coverage_range(t.range_start, t.range_end) group by k.dataset_uuid
), h as (
  select k.*, case when isempty(k.held) then '{}' else int8multirange(range_merge(k.held)) - k.held - k.dropped end as gaps
  from known k
)
select h.dataset_id, h.partitions, lower(h.held) as first, coalesce(upper(h.held) - 1, 9223372036854775807) as last,
  case when isempty(h.gaps) then 0 else (select count(*) from unnest(h.gaps)) end as gap_count,
  case when isempty(h.gaps) then '[]' else (
    select jsonb_agg(jsonb_build_array(lower(r), upper(r) - 1) order by r)
    from (select r from unnest(h.gaps) r limit $3) f) end as gaps,
  coalesce(l.dead, 0) as dead,
  case when not isempty(h.dropped) then jsonb_build_array(lower(h.dropped), upper(h.dropped) - 1) end as dropped,
  case when isempty(h.dropped) then 0 else (select count(*) from unnest(h.dropped)) end as dropped_ranges,
  case when h.partitions->>'by' = 'name' and not isempty(h.dropped) then (
    select array_agg(n.name order by n.position) from (
      select name, position from partition_names
      where org_id = h.org_id and position <@ h.dropped order by position limit $4) n) end as dropped_names,
  case when not isempty(h.dropped) then (select sum(upper(r) - lower(r))::bigint from unnest(h.dropped) r) end as dropped_count
from h left join lost l using (dataset_uuid)

-- name: missing_positions
-- Which of these positions a dataset lacks, which it has dropped, and the job that produces it. Sources that only receive events, and jobs of
-- the dispatcher, have no commits: the positions of their events count.
select g.name as dag, j.job_id, j.name as job, j.activation, j.source_kind, j.runtime, j.operator,
  j.definition->'config' as config, d.definition->'partitions' as partitions,
  (select jsonb_object_agg(n.name, n.position) from (
     select name, position from partition_names
     where d.definition->'partitions'->>'by' = 'name' and org_id = d.org_id and position between $3 and $4
     order by position limit 1000) n) as names,
  case when j.source_kind in ('manual', 'webhook', 'cron') or j.runtime = 'dispatcher' then least(
    (select range_start from events where generation_id = d.current_generation_id and partition_key is null
     order by range_start limit 1),
    (select range_start from events where generation_id = d.current_generation_id and partition_key is not null
     order by range_start limit 1))
  else lower(coverage_of(d.current_generation_id)) end as begins,
  (select jsonb_agg(jsonb_build_array(lower(r), coalesce(upper(r) - 1, 9223372036854775807)) order by r)
   from unnest(int8multirange(coverage_range($3, $4)) - case
     when j.source_kind in ('manual', 'webhook', 'cron') or j.runtime = 'dispatcher' then coalesce(
       (select range_agg(coverage_range(e.range_start, e.range_end)) from events e
        where e.generation_id = d.current_generation_id and e.range_start <= $4 and e.range_end >= $3), '{}')
     else coverage_of(d.current_generation_id) end - dropped_of(d.dataset_uuid)) r) as missing,
  (select jsonb_agg(jsonb_build_array(lower(r), coalesce(upper(r) - 1, 9223372036854775807)) order by r)
   from unnest(int8multirange(coverage_range($3, $4)) * dropped_of(d.dataset_uuid)) r) as dropped
from datasets d join orgs o using (org_id) join dags g using (dag_id)
left join lateral (
  select j.* from job_outputs x join jobs j using (job_id)
  where x.generation_id = d.current_generation_id and j.routed and not j.building limit 1) j on true
where o.slug = $1 and d.dataset_id = $2

-- name: unfinished
-- Queued, in-flight or dead tasks of a job that cover some of these positions.
select t.task_id, t.state, coalesce(t.partition_key, t.range_start::text) as scope, t.range_start as first,
  t.error->>'code' as code
from tasks t where t.job_id = $1 and (t.stage = 0 or t.stage = 1 or t.stage = 3) and t.range_start <= $3 and t.range_end >= $2
order by t.stage desc, t.range_start, t.task_id desc limit $4

-- name: finding_scopes
-- Unfinished tasks of the job that finds out which scopes of a job are ready, for these positions of one of its inputs.
select t.task_id, t.state, coalesce(t.partition_key, t.range_start::text) as scope, t.range_start as first,
  t.error->>'code' as code
from job_inputs i join job_outputs o using (generation_id) cross join lateral (
  select * from tasks t where t.job_id = o.job_id and (t.stage = 0 or t.stage = 1 or t.stage = 3) offset 0) t
where i.job_id = $1 and i.role = 'triggers' and t.range_start <= $3 and t.range_end >= $2
order by t.stage desc, t.range_start, t.task_id desc limit 1

-- name: corrections
-- Tasks of a job for positions that may be there already, and that no other task has done since: unfinished or dead.
select t.task_id, t.state, coalesce(t.partition_key, t.range_start::text) as scope, t.range_start as first,
  t.error->>'code' as code
from tasks t where t.job_id = $1 and (t.stage = 0 or t.stage = 1) and t.range_start <= $3 and t.range_end >= $2
union all
select t.task_id, 'dead', coalesce(t.partition_key, t.range_start::text), t.range_start, t.error->>'code'
from dead_tasks t where t.job_id = $1 and t.standing in ('open', 'acknowledged')
  and t.range_start <= $3 and t.range_end >= $2
order by task_id desc limit $4

-- name: canceled
-- Canceled tasks of a job that cover some of these positions. Used only if nothing else explains the gap: it has no
-- index.
select t.task_id, t.state, coalesce(t.partition_key, t.range_start::text) as scope, t.range_start as first,
  null as code
from tasks t where t.job_id = $1 and t.state = 'canceled' and t.range_start <= $3 and t.range_end >= $2
order by t.task_id desc limit $4

-- name: forget
-- Deletes the coverage of deleted generations.
delete from generation_coverage where generation_id = any($1::uuid[])

-- name: strip_dataset
-- What a strip of a dataset is drawn from: its generation, its partitions, and the ends of what it holds.
select d.current_generation_id as generation_id, d.definition->'partitions' as partitions,
  c.first, c.last
from datasets d join orgs o using (org_id)
cross join lateral (
  select min(lower(positions)) as first, max(coalesce(upper(positions) - 1, 9223372036854775807)) as last
  from generation_coverage where generation_id = d.current_generation_id and not isempty(positions)) c
where o.slug = $1 and d.dataset_id = $2 and d.current_generation_id is not null

-- name: strip_tasks
-- Tasks of the jobs that write a generation: those that wait, are in flight, or are dead and not acknowledged; of each
-- the first $2.
select t.stage, t.range_start as first, t.range_end as last
from job_outputs x join jobs j using (job_id) cross join lateral (
  (select stage, range_start, range_end from tasks where job_id = j.job_id and stage = 0 limit $2) union all
  (select stage, range_start, range_end from tasks where job_id = j.job_id and stage = 1 limit $2) union all
  (select stage, range_start, range_end from tasks where job_id = j.job_id and stage = 3 and acknowledged_at is null limit $2)
) t
where x.generation_id = $1 and j.routed and not j.building and t.range_start is not null

-- name: strip
-- How many positions of $2 to $3 a generation holds in each stretch of $4 positions: `part` are those of a stretch that is
-- held in part; where `begin` is, a range begins that covers whole stretches, and where it is negative, it ends.
with ranges as (
  select greatest(lower(r), $2) - $2 as a, least(coalesce(upper(r) - 1, 9223372036854775807), $3) - $2 as b
  from generation_coverage c, unnest(c.positions) r
  where c.generation_id = $1 and lower(r) <= $3 and coalesce(upper(r) - 1, 9223372036854775807) >= $2
)
select x.cell, sum(x.part)::bigint as part, sum(x.begin)::bigint as begin from (
  select a / $4 as cell, least(b, (a / $4 + 1) * $4 - 1) - a + 1 as part, 0 as begin from ranges
  union all
  select b / $4, b - (b / $4) * $4 + 1, 0 from ranges where b / $4 > a / $4
  union all
  select a / $4 + 1, 0, 1 from ranges where b / $4 > a / $4 + 1
  union all
  select b / $4, 0, -1 from ranges where b / $4 > a / $4 + 1
) x group by x.cell order by x.cell
