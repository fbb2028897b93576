-- Datasets that keep their partitions for a time.

-- name: kept_for_a_time
-- Served datasets with a retention: how long, how they are partitioned, what the time is, and all their generations of the
-- same periods that a version in reach has.
select d.dataset_uuid, make_interval(secs => (d.definition->>'retention')::float8) as retention,
       d.definition->'partitions' as partitions, tp_now() as now,
       (select array_agg(distinct v.generation_id order by v.generation_id) from dag_version_datasets v
        join dag_versions w using (dag_version_id)
        where v.dataset_uuid = d.dataset_uuid and w.state <> 'collected'
          and same_periods(v.definition->'partitions', d.definition->'partitions')) as generation_ids
from datasets d
where d.current_generation_id is not null and d.definition->>'retention' is not null
  and exists (select 1 from generation_cursors k where k.generation_id = d.current_generation_id)
order by d.dataset_uuid

-- name: lock_generations
-- Blocks commits to generations, as commits block each other.
select generation_id from generation_cursors where generation_id = any($1::uuid[]) order by generation_id for no key update

-- name: expired
-- Positions of the oldest commits that readers see and that are older than the retention: by their period, whose first
-- that is kept is $3, or by the time of the commit. What was dropped before and computed again is kept from then on.
-- What a younger commit covers as well is not among them.
with serving as materialized (
  select d.current_generation_id as generation_id, ever_dropped(d.dataset_uuid) as dropped, k.widest
  from datasets d join generation_cursors k on k.generation_id = d.current_generation_id where d.dataset_uuid = $1
), old as materialized (
  select c.commit_id, c.range_start, c.range_end from serving s join dataset_commits c using (generation_id)
  where c.superseded_by is null and ($3::bigint is null or c.range_start < $3)
    and case when $3::bigint is null or s.dropped @> coverage_range(c.range_start, c.range_end)
             then c.committed_at < tp_now() - $2::interval else c.range_end < $3 end
  order by c.range_start, c.commit_id limit $4
), ends as materialized (
  select min(range_start) as first, max(range_end) as last, range_agg(coverage_range(range_start, range_end)) as positions
  from old
), young as materialized (
  select range_agg(coverage_range(c.range_start, c.range_end)) as positions
  from ends e cross join serving s join dataset_commits c using (generation_id)
  where c.superseded_by is null and c.range_end >= e.first and c.range_start <= e.last
    and c.range_start >= greatest(e.first::numeric - s.widest, -9223372036854775808)::bigint
    and c.commit_id not in (select commit_id from old)
)
select (select count(*) from old) as commits, (select array_agg(commit_id) from old) as commit_ids,
       coalesce((select jsonb_agg(jsonb_build_array(lower(r), coalesce(upper(r) - 1, 9223372036854775807)))
        from unnest(e.positions - coalesce(y.positions, '{}')) r), '[]') as positions
from ends e cross join young y

-- name: drop
-- Drops positions of a dataset: its commits, and those of its other generations that lie within, are read no more; their
-- files are collected like those of superseded commits. Nobody holds the positions any longer, nor has been told of them.
with gone as materialized (
  select range_agg(coverage_range(p.first, p.last)) as positions, min(p.first) as first, max(p.last) as last
  from unnest($4::bigint[], $5::bigint[]) as p (first, last)
), marked as (
  update dataset_commits c set superseded_by = c.commit_id, superseded_at = tp_now(), hidden = null
  from gone g
  where c.superseded_by is null
    and (c.commit_id = any($3::bigint[])
      or c.generation_id = any($2::uuid[]) and c.range_start between g.first and g.last
         and g.positions @> coverage_range(c.range_start, c.range_end))
  returning c.commit_id
), noticed as (
  -- Whoever has listed the commits of a generation compares this row.
  update generation_cursors k set updated_at = k.updated_at where k.generation_id = any($2::uuid[])
), held as (
  update generation_coverage c set positions = c.positions - g.positions
  from gone g where c.generation_id = any($2::uuid[]) and c.positions && g.positions
), told as (
  update told_positions t set positions = t.positions - g.positions
  from gone g, job_inputs i
  where i.dataset_uuid = $1 and t.job_id = i.job_id and t.input_index = i.input_index and t.positions && g.positions
), recorded as (
  insert into dropped_positions as d (dataset_uuid, bucket, positions)
  select $1::uuid, coverage_bucket(p.first, p.last), range_agg(coverage_range(p.first, p.last))
  from unnest($4::bigint[], $5::bigint[]) as p (first, last) group by 2 order by 2
  on conflict (dataset_uuid, bucket) do update set positions = d.positions + excluded.positions
)
select count(*) from marked

-- name: held_again
-- What the generations of a version hold of what their datasets have dropped: it was computed, or about to be, when the
-- serving generation dropped it.
select d.dataset_uuid, v.generation_id, again.positions as ranges
from dag_version_datasets v join datasets d using (dataset_uuid)
cross join lateral (
  select jsonb_agg(jsonb_build_array(lower(r), coalesce(upper(r) - 1, 9223372036854775807)) order by r) as positions
  from unnest(dropped_of(d.dataset_uuid) * coverage_of(v.generation_id)) r) again
where v.dag_version_id = $1 and d.current_generation_id <> v.generation_id and again.positions is not null
  and same_periods(d.definition->'partitions', v.definition->'partitions')
  and exists (select 1 from dropped_positions p where p.dataset_uuid = d.dataset_uuid)
order by v.generation_id

-- name: forget_other_periods
-- What was dropped of datasets that a version gives other periods: their positions would name something else.
delete from dropped_positions p using dag_version_datasets v, datasets d
where v.dag_version_id = $1 and d.dataset_uuid = v.dataset_uuid and p.dataset_uuid = d.dataset_uuid
  and not same_periods(d.definition->'partitions', v.definition->'partitions')

-- name: dropped_inputs
-- What the datasets have dropped whose rows a job reads; not of one that it reads by other periods than those that serve.
select i.input_index, lower(r) as first, coalesce(upper(r) - 1, 9223372036854775807) as last
from job_inputs i join generations g using (generation_id)
join generations rows on rows.generation_id = coalesce(g.data_generation_id, g.generation_id)
join datasets d on d.dataset_uuid = rows.dataset_uuid
cross join lateral (select v.definition->'partitions' as partitions from dag_version_datasets v
                    where v.generation_id = rows.generation_id limit 1) own
cross join lateral unnest(dropped_of(rows.dataset_uuid)) r
where i.job_id = $1 and exists (select 1 from dropped_positions p where p.dataset_uuid = rows.dataset_uuid)
  and same_periods(d.definition->'partitions', own.partitions)
order by i.input_index, r

-- name: dropped_reads
-- Which of these ranges of generations reach into what their dataset has dropped, and where. A dataset of events alone
-- has no rows that a task could lack.
select n.ord::int as ord, d.dataset_id, d.definition->'partitions' as partitions, lower(gone.positions) as first,
       coalesce(upper(gone.positions) - 1, 9223372036854775807) as last,
       (select jsonb_object_agg(p.name, p.position) from partition_names p
        where d.definition->'partitions'->>'by' = 'name' and p.org_id = d.org_id
          and p.position <@ gone.positions) as names
from unnest($1::uuid[], $2::bigint[], $3::bigint[]) with ordinality as n (generation_id, first, last, ord)
join generations g using (generation_id) join datasets d using (dataset_uuid)
cross join lateral (select v.definition->'partitions' as partitions from dag_version_datasets v
                    where v.generation_id = g.generation_id limit 1) own
cross join lateral (
  select dropped_of(d.dataset_uuid) * int8multirange(coverage_range(n.first, n.last)) as positions offset 0) gone
where not isempty(gone.positions) and same_periods(d.definition->'partitions', own.partitions)
  and exists (select 1 from generation_cursors k where k.generation_id = d.current_generation_id)
order by n.ord
