-- How a dataset grew.

-- name: growth
-- Rows and bytes of the live commits of a generation by when they were made, in $3 equal spans of time. Of the $2 commits
-- with the highest positions, so that a page of a dataset with millions of commits waits no longer than another.
with newest as materialized (
  select committed_at, row_count, bytes from dataset_commits
  where generation_id = $1 and superseded_by is null order by range_start desc, commit_id desc limit $2
), span as (
  select min(committed_at) as first, greatest(max(committed_at) - min(committed_at), interval '1 minute') as length from newest
), placed as (
  select least(floor(extract(epoch from n.committed_at - s.first) / extract(epoch from s.length) * $3), $3 - 1)::int as place,
         n.row_count, n.bytes
  from newest n cross join span s
)
select s.first + s.length * p.place / $3 as at, s.length / $3 as lasts, count(*) as commits,
       least(sum(p.row_count), 9223372036854775807)::bigint as rows, least(sum(p.bytes), 9223372036854775807)::bigint as bytes
from placed p cross join span s group by p.place, s.first, s.length order by p.place

-- name: fresh
-- When something was last committed to a generation, and when rows were.
select updated_at, filled_at from generation_cursors where generation_id = $1
