-- What tasks produced.

-- name: record
-- Outputs become part of their generation; a cursor never moves backwards. Commits of one generation take turns on the
-- cursor's row: the transaction that holds it sees everything committed before.
with produced as materialized (
  select nextval('dataset_commits_commit_id_seq') as commit_id, p.*
  from unnest($1::uuid[], $2::int[], $3::uuid[], $4::text[], $5::bigint[], $6::bigint[], $7::text[],
              $8::bigint[], $9::bigint[], $10::text[], $11::text[], $12::boolean[]) with ordinality
    as p (task_id, output_index, generation_id, partition_key, range_start, range_end, files, row_count, bytes,
          schema_hash, columns, fills, ord)
), kept as (
  insert into dataset_commits (commit_id, task_id, output_index, generation_id, partition_key, range_start, range_end,
                               files, row_count, bytes, schema_hash, columns, committed_at)
  overriding system value
  select commit_id, task_id, output_index, generation_id, partition_key, range_start, range_end, files::jsonb,
         row_count, bytes, schema_hash, columns::jsonb, tp_now()
  from produced
  on conflict (task_id, output_index, scope_key) do nothing
  returning commit_id
), moved as (
  insert into generation_cursors (generation_id, position, widest, updated_at, filled_at)
  select generation_id, max(range_end), least(max(range_end::numeric - range_start), 9223372036854775807)::bigint,
         tp_now(), case when bool_or(row_count > 0 and fills) then tp_now() end
  from produced group by generation_id order by generation_id
  on conflict (generation_id) do update
  set position = greatest(generation_cursors.position, excluded.position),
      widest = greatest(generation_cursors.widest, excluded.widest), updated_at = excluded.updated_at,
      filled_at = coalesce(excluded.filled_at, generation_cursors.filled_at)
)
select array_agg(p.commit_id order by p.ord) as drawn, (select array_agg(commit_id) from kept) as kept from produced p

-- name: supersede
-- Newer commits replace live commits of other tasks where they overlap; a commit with nothing left is superseded as a
-- whole. Returns the newer commits that replaced something.
with newer as materialized (
  select * from unnest($1::bigint[], $2::uuid[], $3::uuid[], $4::bigint[], $5::bigint[])
    as n (commit_id, task_id, generation_id, range_start, range_end)
), touched as materialized (
  select n.commit_id as newer_id, c.commit_id, coalesce(c.hidden, '{}') as hidden,
         int8range(n.range_start, nullif(n.range_end, 9223372036854775807), '[]') as covered,
         int8range(c.range_start, nullif(c.range_end, 9223372036854775807), '[]') as positions
  from newer n join generation_cursors k using (generation_id)
  cross join lateral (
    select c.commit_id, c.hidden, c.range_start, c.range_end from dataset_commits c
    where c.generation_id = n.generation_id and c.superseded_by is null
      and c.range_start >= greatest(n.range_start::numeric - k.widest, -9223372036854775808)::bigint
      and c.range_start <= n.range_end and c.range_end >= n.range_start
      and c.task_id <> n.task_id
      -- Ids are drawn before waiting for the cursor. Commits of other calls were made earlier, whatever their ids.
      and (c.commit_id < n.commit_id or c.commit_id <> all($1::bigint[]))
    offset 0  -- a probe by index for each commit
  ) c
), given_way as (
  select commit_id, min(newer_id) as newer_id, hidden + range_agg(covered) as hidden,
         hidden + range_agg(covered) @> positions as wholly
  from touched group by commit_id, hidden, positions
), marked as (
  update dataset_commits c
  set hidden = case when not wholly then g.hidden end, superseded_by = case when wholly then newer_id end,
      superseded_at = case when wholly then tp_now() end
  from given_way g where c.commit_id = g.commit_id
)
select distinct newer_id as superseded_by from touched

-- name: overlapping
-- The indexes of planned commits that would partly overlap rows of a wider or shifted scope.
select n.ord::int as ord
from unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[]) with ordinality
  as n (task_id, generation_id, range_start, range_end, ord)
join generation_cursors k using (generation_id)
where exists (
  select 1 from dataset_commits c
  where c.generation_id = n.generation_id and c.superseded_by is null and c.row_count > 0 and c.task_id <> n.task_id
    and c.range_start >= greatest(n.range_start::numeric - k.widest, -9223372036854775808)::bigint
    and c.range_start <= n.range_end and c.range_end >= n.range_start
    and not (c.range_start >= n.range_start and c.range_end <= n.range_end)
)

-- name: wait_for_others
-- Commits of these generations that others have begun are visible to the next statement.
select 1 from generation_cursors where generation_id = any($1::uuid[]) order by generation_id for no key update

-- name: overtaken
-- Tasks of planned commits for whose positions others have committed since their attempts began.
select distinct n.task_id
from unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[]) as n (task_id, generation_id, range_start, range_end)
join tasks t using (task_id) join generation_cursors k using (generation_id)
where exists (
  select 1 from dataset_commits c
  where c.generation_id = n.generation_id and c.superseded_by is null and c.task_id <> n.task_id
    and c.committed_at > t.started_at
    and c.range_start >= greatest(n.range_start::numeric - k.widest, -9223372036854775808)::bigint
    and c.range_start <= n.range_end and c.range_end >= n.range_start
  offset 0)

-- name: for_tasks
-- The live files of ranges of generations that tasks read; of a range without ends, those of the newest position. If the
-- range asks for something ($4, a JSON path), only files that can hold it, and commits that have some. Statistics stay
-- here, unless $5: most of what is stored of a file are statistics. Of each range at most $6 commits, in no order.
select n.ord::int as ord, c.commit_id, c.range_start, c.range_end,
  case when $5 then c.files
    when n.asked is null and jsonb_array_length(c.files) = 1 then jsonb_build_array(c.files->0 #- '{statistics}')
    else (select coalesce(jsonb_agg(f.file - 'statistics' order by f.n), '[]')
          from jsonb_path_query(c.files, coalesce(n.asked, '$[*]')) with ordinality f (file, n)) end as files,
  (select jsonb_agg(jsonb_build_array(lower(h), coalesce(upper(h) - 1, 9223372036854775807))) from unnest(c.hidden) h) as hidden
from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[]::jsonpath[]) with ordinality as n (generation_id, first, last, asked, ord)
join generation_cursors k using (generation_id)
cross join lateral (
  select c.commit_id, c.files, c.range_start, c.range_end, c.hidden from dataset_commits c
  where c.generation_id = k.generation_id and c.superseded_by is null
    and c.range_start >= greatest(coalesce(n.first, k.position)::numeric - k.widest, -9223372036854775808)::bigint
    and c.range_start <= coalesce(n.last, k.position)
    and c.range_end >= coalesce(n.first, k.position)
    and (n.asked is null or jsonb_path_exists(c.files, n.asked))
  limit $6 offset 0  -- a probe by index for each range
) c

-- name: newest
-- Of each range, the newest live commit that overlaps it.
select n.ord::int as ord, (
  select max(c.commit_id) from dataset_commits c
  where c.generation_id = k.generation_id and c.superseded_by is null
    and c.range_start >= greatest(coalesce(n.first, k.position)::numeric - k.widest, -9223372036854775808)::bigint
    and c.range_start <= coalesce(n.last, k.position) and c.range_end >= coalesce(n.first, k.position)) as commit_id
from unnest($1::uuid[], $2::bigint[], $3::bigint[]) with ordinality as n (generation_id, first, last, ord)
join generation_cursors k using (generation_id)

-- name: for_task_at
-- The files of a generation that were live at a time, for a task that reads all of it. As `commits_at` of pinned.sql; what
-- $3 asks for as in `for_tasks`.
with there as materialized (
  select commit_id, range_start, range_end, hidden from dataset_commits
  where generation_id = $1 and superseded_by is null and committed_at <= $2
  union all
  -- A commit that was superseded as a whole since then no longer records which part was hidden before.
  select commit_id, range_start, range_end, '{(,)}'::int8multirange from dataset_commits
  where generation_id = $1 and superseded_by is not null and superseded_at > $2 and committed_at <= $2
), shown as (
  select t.commit_id, t.range_start, t.range_end,
    case when t.hidden is not null then t.hidden * coalesce((
      select range_agg(int8range(n.range_start, nullif(n.range_end, 9223372036854775807), '[]')) from there n
      where n.commit_id > t.commit_id and n.range_start <= t.range_end and n.range_end >= t.range_start), '{}') end as hidden
  from there t
)
select c.commit_id, c.range_start, c.range_end,
  (select coalesce(jsonb_agg(f.file - 'statistics' order by f.n), '[]')
   from jsonb_path_query(c.files, coalesce(a.asked, '$[*]')) with ordinality f (file, n)) as files,
  (select jsonb_agg(jsonb_build_array(lower(h), coalesce(upper(h) - 1, 9223372036854775807))) from unnest(s.hidden) h) as hidden
from (select $3::text::jsonpath as asked offset 0) a cross join shown s join dataset_commits c using (commit_id)
where a.asked is null or jsonb_path_exists(c.files, a.asked)

-- name: forgotten_since
-- Which of these generations can no longer be read as of a time: rows that were live then have been deleted since.
select n.ord::int as ord, d.dataset_id, k.forgotten_until
from unnest($1::uuid[], $2::timestamptz[]) with ordinality as n (generation_id, at, ord)
join generation_cursors k using (generation_id) join generations g using (generation_id)
join datasets d using (dataset_uuid)
where n.at < k.forgotten_until

-- name: record_reads
-- The newest commit that the attempt of a task read of an input that it reads as a whole; null: there was none.
insert into task_reads (task_id, input_index, generation_id, commit_id)
select * from unnest($1::uuid[], $2::int[], $3::uuid[], $4::bigint[])
on conflict (task_id, input_index) do update set generation_id = excluded.generation_id, commit_id = excluded.commit_id

-- name: own_files
-- The live files of each task's scope that its own job committed earlier.
select t.task_id, o.output_index, coalesce(c.holds_commit, c.commit_id) as commit_id, c.files
from unnest($1::uuid[]) as w (task_id)
join tasks t using (task_id) join job_outputs o using (job_id) join generation_cursors k using (generation_id)
cross join lateral (
  select c.commit_id, c.holds_commit, c.files from dataset_commits c
  where c.generation_id = k.generation_id and c.superseded_by is null
    and c.range_start >= greatest(t.range_start::numeric - k.widest, -9223372036854775808)::bigint
    and c.range_start <= t.range_end and c.range_end >= t.range_start
  offset 0  -- a probe by index for each task
) c
order by t.task_id, o.output_index, 3

-- name: lock_appends
-- Appends to a generation take turns: a reader that sees a commit sees all earlier ones.
select pg_advisory_xact_lock(1635151214, hashtext(g::text)) from unnest($1::uuid[]) as g

-- name: added_since
-- The indexes of planned appends whose scope has had rows added since a given commit.
select n.ord::int as ord
from unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[]) with ordinality
  as n (task_id, generation_id, range_start, range_end, commit_id, ord)
join generation_cursors k using (generation_id)
where exists (
  select 1 from dataset_commits c
  where c.generation_id = n.generation_id and coalesce(c.holds_commit, c.commit_id) > n.commit_id and c.superseded_by is null
    and c.row_count > 0 and c.task_id <> n.task_id
    and c.range_start >= greatest(n.range_start::numeric - k.widest, -9223372036854775808)::bigint
    and c.range_start <= n.range_end and c.range_end >= n.range_start
)

-- name: superseded
-- A page of commits that were superseded before the grace period, oldest first. Of compacted ones, `superseded_at` is
-- when their newest row was written, and `retired_at` when their files were replaced.
select commit_id, task_id, files, coalesce(retired_at, superseded_at) as superseded_at from dataset_commits
where superseded_by is not null and coalesce(retired_at, superseded_at) < tp_now() - $1::interval
  and (coalesce(retired_at, superseded_at), commit_id) > (coalesce($2::timestamptz, '-infinity'), $3::bigint)
order by coalesce(retired_at, superseded_at), commit_id limit $4

-- name: files_of_tasks
-- The files in commits of these tasks, without commits superseded before the grace period, if one is given. The paths
-- of an attempt's files name its task, so no other task's commits contain them.
select files from dataset_commits
where task_id = any($1::uuid[]) and coalesce(coalesce(retired_at, superseded_at) >= tp_now() - $2::interval, true)

-- name: of_generations
-- A page of commits of generations that nobody reads.
select commit_id, task_id, files from dataset_commits
where generation_id = any($1::uuid[]) and commit_id > $2 order by commit_id limit $3

-- name: files_elsewhere
-- The files in commits of these tasks in other generations than these: moved hot rows record where they went.
select files from dataset_commits
where task_id = any($1::uuid[]) and generation_id <> all($2::uuid[])
  and coalesce(coalesce(retired_at, superseded_at) >= tp_now() - $3::interval, true)

-- name: forget_of_generations
-- Deletes commits whose files are deleted, as are their generations.
with scopes as (delete from compacted_scopes where commit_id = any($1::bigint[]))
delete from dataset_commits where commit_id = any($1::bigint[])

-- name: forget
-- Deletes commits whose files are deleted. Their generations can no longer be read as of a time when they were live.
with gone as (
  delete from dataset_commits where commit_id = any($1::bigint[]) and superseded_by is not null
  returning generation_id, superseded_at
), scopes as (
  delete from compacted_scopes where commit_id = any($1::bigint[])
)
update generation_cursors k set forgotten_until = greatest(k.forgotten_until, g.until)
from (select generation_id, max(superseded_at) as until from gone group by generation_id) g
where k.generation_id = g.generation_id

-- name: summary
-- Rows and bytes that readers see, per dataset of an organization, or of those named; `at_most` if newer commits have
-- replaced some of the counted rows.
select d.dataset_id, d.current_generation_id as generation_id, d.definition->>'storage' as storage,
       coalesce(t.commits, 0) as commits, least(coalesce(t.row_count, 0), 9223372036854775807)::bigint as rows,
       least(coalesce(t.bytes, 0), 9223372036854775807)::bigint as bytes, gc.position as cursor,
       coalesce(t.partly_hidden, 0) > 0 as at_most
from datasets d join orgs o using (org_id)
left join generation_totals t on t.generation_id = d.current_generation_id
left join generation_cursors gc on gc.generation_id = d.current_generation_id
where o.slug = $1 and d.current_generation_id is not null and ($2::text[] is null or d.dataset_id = any($2))
order by d.dataset_id
