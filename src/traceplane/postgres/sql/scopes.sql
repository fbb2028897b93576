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
-- The first known scopes that overlap ranges and start at $5 or later, with the numbers of the ranges; ordered by their
-- start. No range has to be read further than the first $6 scopes.
select s.scope_key, s.partition_key, s.range_start, s.range_end, s.emitted, array_agg(n.ord::int) as ranges
from unnest($2::bigint[], $3::bigint[]) with ordinality as n (first, last, ord)
cross join lateral (
  select * from known_scopes s where s.job_id = $1::uuid and s.range_start <= n.last and s.range_end >= n.first
    and s.range_start >= greatest(n.first::numeric - $4::bigint, $5::bigint)::bigint
  order by s.range_start limit $6
) s
group by s.scope_key, s.partition_key, s.range_start, s.range_end, s.emitted
order by s.range_start, s.scope_key limit $6

-- name: widest
-- The length of the longest scope that a job knows.
select coalesce((select least(range_end::numeric - range_start, 9223372036854775807)::bigint from known_scopes
  where job_id = $1::uuid and range_end > range_start order by range_end::numeric - range_start desc limit 1), 0)

-- name: mark_emitted
-- These scopes have been emitted.
update known_scopes set emitted = true where job_id = $1::uuid and scope_key = any($2::text[]) and not emitted

-- name: set_periods
-- The rows of positions ($2 to $4) are in these periods ($5 to $8) from now on, and in no others.
with changed as materialized (
  select input_index, range_agg(coverage_range(first, last)) as positions
  from unnest($2::int[], $3::bigint[], $4::bigint[]) as n (input_index, first, last) group by 1
), told as materialized (
  select input_index, period, range_agg(coverage_range(first, last)) as positions
  from unnest($5::int[], $6::bigint[], $7::bigint[], $8::bigint[]) as n (input_index, period, first, last) group by 1, 2
), before as materialized (
  select p.input_index, p.period, p.positions - c.positions as positions
  from changed c cross join lateral (
    select * from told_periods p where p.job_id = $1::uuid and p.input_index = c.input_index
      -- Most changes are at the end, so few periods end after them.
      and coalesce(upper(p.positions), 9223372036854775807) > lower(c.positions)
    offset 0) p
  where p.positions && c.positions
), after as materialized (
  select n.input_index, n.period, coalesce(n.left_over, p.positions, '{}') + coalesce(n.told, '{}') as positions
  from (select input_index, period, b.positions as left_over, t.positions as told
        from before b full join told t using (input_index, period)) n
  left join lateral (
    select p.positions from told_periods p
    where p.job_id = $1::uuid and p.input_index = n.input_index and p.period = n.period offset 0) p on true
), empty as materialized (
  select input_index, array_agg(period) as periods from after where isempty(positions) group by 1
), gone as (
  delete from told_periods p using empty e
  where p.job_id = $1::uuid and p.input_index = e.input_index and p.period = any(e.periods)
)
insert into told_periods (job_id, input_index, period, positions)
select $1::uuid, input_index, period, positions from after where not isempty(positions) order by input_index, period
on conflict (job_id, input_index, period) do update set positions = excluded.positions
where told_periods.positions <> excluded.positions

-- name: periods_of_positions
-- The periods in which positions of a job's inputs have rows, with these positions.
select n.ord::int as ord, p.period, lower(r) as first, coalesce(upper(r) - 1, 9223372036854775807) as last
from unnest($2::int[], $3::bigint[], $4::bigint[]) with ordinality as n (input_index, first, last, ord)
cross join lateral (
  select * from told_periods p where p.job_id = $1::uuid and p.input_index = n.input_index
    and coalesce(upper(p.positions), 9223372036854775807) > n.first and p.positions && coverage_range(n.first, n.last)
  offset 0) p
cross join lateral unnest(p.positions) r where r && coverage_range(n.first, n.last)

-- name: around_positions
-- For positions of a job's inputs: the period that their rows are in or, by positions, come after, and the next one.
select n.ord::int as ord,
  (select period from told_periods p where p.job_id = $1::uuid and p.input_index = n.input_index
     and lower(p.positions) < n.first order by lower(p.positions) desc limit 1) as before,
  (select period from told_periods p where p.job_id = $1::uuid and p.input_index = n.input_index
     and coalesce(upper(p.positions), 9223372036854775807) > least(n.last, 9223372036854775806) + 1
   order by coalesce(upper(p.positions), 9223372036854775807) limit 1) as after
from unnest($2::int[], $3::bigint[], $4::bigint[]) with ordinality as n (input_index, first, last, ord)
order by n.ord

-- name: around_periods
-- For periods of a job's inputs: the first and the last position with rows in it, the last one before, the first after.
select n.ord::int as ord, lower(p.positions) as first, coalesce(upper(p.positions) - 1, 9223372036854775807) as last,
  (select coalesce(upper(b.positions) - 1, 9223372036854775807) from told_periods b where b.job_id = $1::uuid
     and b.input_index = n.input_index and b.period < n.period order by b.period desc limit 1) as before,
  (select lower(a.positions) from told_periods a where a.job_id = $1::uuid
     and a.input_index = n.input_index and a.period > n.period order by a.period limit 1) as after
from unnest($2::int[], $3::bigint[]) with ordinality as n (input_index, period, ord)
left join told_periods p on p.job_id = $1::uuid and p.input_index = n.input_index and p.period = n.period
order by n.ord

-- name: newest_periods
-- The last period of each input in which rows were told.
select input_index, max(period) as period from told_periods where job_id = $1::uuid group by input_index

-- name: positions_in_periods
-- From the first to the last position that has rows in periods, for inputs of jobs behind a `scopes` job.
select n.ord::int as ord, min(lower(p.positions)) as first, max(coalesce(upper(p.positions) - 1, 9223372036854775807)) as last
from unnest($1::uuid[], $2::int[], $3::bigint[], $4::bigint[]) with ordinality as n (job_id, input_index, first, last, ord)
cross join lateral told_to(n.job_id, n.input_index) t
join told_periods p on p.job_id = t.job_id and p.input_index = t.input_index and p.period between n.first and n.last
group by n.ord

-- name: periods_with_positions
-- The periods in which positions have rows, for inputs of a job behind a `scopes` job.
select distinct p.period
from unnest($2::int[], $3::bigint[], $4::bigint[]) as n (input_index, first, last)
cross join lateral told_to($1::uuid, n.input_index) t
join told_periods p on p.job_id = t.job_id and p.input_index = t.input_index
  and coalesce(upper(p.positions), 9223372036854775807) > n.first and p.positions && coverage_range(n.first, n.last)
order by p.period
