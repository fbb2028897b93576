-- Ordered cursor events become ranges. Positions are kept rather than counted, so that a repeated or
-- late event can neither complete a range twice nor leave it open.

-- name: add_positions
-- Records the positions that arrived.
insert into aggregator_positions (job_id, position)
select distinct $1::uuid, position
from unnest($2::bigint[], $3::bigint[]) as r (range_start, range_end), generate_series(r.range_start, r.range_end) as position
on conflict do nothing

-- name: full_ranges
-- The touched ranges in which every position is present.
select r.range_start from unnest($2::bigint[]) as r (range_start)
where (select count(*) from aggregator_positions p
       where p.job_id = $1 and p.position between r.range_start and r.range_start + $3::bigint - 1) = $3::bigint
order by r.range_start

-- name: head
-- The highest position that arrived.
select max(position) from aggregator_positions where job_id = $1::uuid

-- name: ranges_between
-- The ranges of a size that have a position here and end within these bounds.
select distinct position - mod(mod(position, $4::bigint) + $4::bigint, $4::bigint) as range_start
from aggregator_positions
where job_id = $1::uuid and position between $2::bigint - $4::bigint + 1 and $3::bigint
  and position - mod(mod(position, $4::bigint) + $4::bigint, $4::bigint) + $4::bigint - 1
      between $2::bigint and $3::bigint

-- name: told_of_commits
-- The tasks whose event comes from a commit: every position of its scope has been written.
select i.task_id from task_inputs i join events e using (event_id)
where i.task_id = any($1::uuid[])
  and exists (select 1 from dataset_commits c where c.task_id = e.producer_id and c.generation_id = e.generation_id
                and c.scope_key = e.scope_key offset 0)
