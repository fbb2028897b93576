-- Hot datasets: which generations have a table, and which live commits its rows, or files in their place, come from.

-- name: create
-- The table of a generation, owned by the platform; names are quoted, and types of a fixed list.
call create_hot_table($1, $2, $3, $4, $5::text[])

-- name: drop
-- A generation whose table was dropped.
delete from hot_tables where generation_id = $1

-- name: add
-- A generation whose rows are in its own table.
insert into hot_tables (generation_id, columns, position, unique_key, key) values ($1, $2, $3, $4, $5)

-- name: load
-- The tables of those generations that have one.
select generation_id, columns, position, unique_key, key,
  (select v.definition -> 'partitions' from dag_version_datasets v where v.generation_id = h.generation_id limit 1)
  as partitions,
  coalesce(
    (select ds.definition->>'write_mode' from datasets ds where ds.current_generation_id = h.generation_id),
    (select v.definition->>'write_mode' from dag_version_datasets v join dag_versions using (dag_version_id)
     where v.generation_id = h.generation_id order by number desc limit 1)) = 'buffered' as buffered
from hot_tables h where generation_id = any($1::uuid[])

-- name: lock
-- Commits of a hot generation take turns on this lock. It is always taken before the cursors, in the same order.
select generation_id from hot_tables where generation_id = any($1::uuid[]) order by generation_id for no key update

-- name: held
-- For each range, the live commits that overlap it, oldest first.
select w.ord::int - 1 as number, c.commit_id, c.range_start, c.range_end, c.row_count, c.files
from unnest($1::uuid[], $2::bigint[], $3::bigint[]) with ordinality as w (generation_id, range_start, range_end, ord)
join generation_cursors k using (generation_id)
cross join lateral (
  select c.commit_id, c.range_start, c.range_end, c.row_count, c.files from dataset_commits c
  where c.generation_id = k.generation_id and c.superseded_by is null
    and c.range_start >= greatest(w.range_start::numeric - k.widest, -9223372036854775808)::bigint
    and c.range_start <= w.range_end and c.range_end >= w.range_start
  offset 0  -- a probe by index for each range
) c
order by w.ord, c.commit_id

-- name: states
-- A fingerprint of each range, as model.hot_table.state_of computes it; no row for an empty range.
select w.ord::int - 1 as number, md5(string_agg(c.commit_id::text, ',' order by c.commit_id)) as state
from unnest($1::uuid[], $2::bigint[], $3::bigint[]) with ordinality as w (generation_id, range_start, range_end, ord)
join generation_cursors k using (generation_id)
cross join lateral (
  select c.commit_id from dataset_commits c
  where c.generation_id = k.generation_id and c.superseded_by is null
    and c.range_start >= greatest(w.range_start::numeric - k.widest, -9223372036854775808)::bigint
    and c.range_start <= w.range_end and c.range_end >= w.range_start
  offset 0  -- a probe by index for each range
) c
group by w.ord
