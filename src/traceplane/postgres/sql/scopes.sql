-- Which scopes of a job are ready, and which a change makes stale.

-- name: told_by
-- The generation that each task's event is about; and whether its positions have been written.
select i.task_id, e.generation_id,
  t.kind = 'data' or exists (select 1 from dataset_commits c where c.task_id = e.producer_id
    and c.generation_id = e.generation_id and c.scope_key = e.scope_key offset 0) as brings
from task_inputs i join events e using (event_id) join tasks t using (task_id) where i.task_id = any($1::uuid[])

-- name: add_positions
-- Adds the positions that inputs of a job have been told.
insert into told_positions as p (job_id, input_index, bucket, positions)
select $1::uuid, n.input_index, coverage_bucket(n.first, n.last), range_agg(coverage_range(n.first, n.last))
from unnest($2::int[], $3::bigint[], $4::bigint[]) as n (input_index, first, last)
group by 2, 3 order by 2, 3
on conflict (job_id, input_index, bucket) do update set positions = p.positions + excluded.positions
where not p.positions @> excluded.positions

-- name: extents
-- The first and the last position of each input.
select input_index, min(lower(positions)) as first, max(coalesce(upper(positions) - 1, 9223372036854775807)) as last
from told_positions where job_id = $1::uuid group by input_index

-- name: held
-- Of ranges of inputs: whether all of it has been told, and whether some of it has.
select n.ord::int as ord, coalesce(c.held @> coverage_range(n.first, n.last), false) as all_of_it,
       coalesce(c.held && coverage_range(n.first, n.last), false) as some_of_it
from unnest($2::int[], $3::bigint[], $4::bigint[]) with ordinality as n (input_index, first, last, ord)
left join lateral (
  select range_agg(r) as held from told_positions p, unnest(p.positions) r
  where p.job_id = $1::uuid and p.input_index = n.input_index
    and (p.bucket between n.first >> 16 and n.last >> 16 or p.bucket = -9223372036854775808)
    and r && coverage_range(n.first, n.last)
) c on true
order by n.ord

-- name: add_scopes
-- Scopes that a job has from now on; those it knew stay as they are.
insert into known_scopes (job_id, scope_key, partition_key, range_start, range_end)
select distinct on (coalesce('p:' || n.partition_key, 'c:' || n.first::text))
  $1::uuid, coalesce('p:' || n.partition_key, 'c:' || n.first::text), n.partition_key, n.first, n.last
from unnest($2::text[], $3::bigint[], $4::bigint[]) as n (partition_key, first, last)
on conflict do nothing

-- name: overlapping
-- The known scopes that overlap ranges, with the number of the range; ordered by their start.
select s.scope_key, s.partition_key, s.range_start, s.range_end, s.emitted, array_agg(n.ord::int) as ranges
from unnest($2::bigint[], $3::bigint[]) with ordinality as n (first, last, ord)
cross join lateral (
  select * from known_scopes s where s.job_id = $1::uuid and s.range_start <= n.last and s.range_end >= n.first
    and s.range_start >= greatest(n.first::numeric - $4::bigint, -9223372036854775808)::bigint
) s
group by s.scope_key, s.partition_key, s.range_start, s.range_end, s.emitted
order by s.range_start, s.scope_key

-- name: widest
-- The length of the longest scope that a job knows.
select coalesce((select least(range_end::numeric - range_start, 9223372036854775807)::bigint from known_scopes
  where job_id = $1::uuid and range_end > range_start order by range_end::numeric - range_start desc limit 1), 0)

-- name: mark_emitted
-- These scopes have been emitted.
update known_scopes set emitted = true where job_id = $1::uuid and scope_key = any($2::text[]) and not emitted
