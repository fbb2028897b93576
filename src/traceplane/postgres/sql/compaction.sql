-- Compaction: which files are small, the tasks that merge them, and what their commits leave behind.

-- name: candidates
-- Generations whose files may be merged: they serve, a column tells the positions of their rows apart, a job computes
-- them, and a worker could do it. None that has unfinished or failed work of this kind, nor one whose partitions expire,
-- which they could not do one by one.
select g.generation_id, d.dataset_uuid, d.dataset_id, o.slug as org, d.definition->'compaction' as compaction,
       coalesce(d.definition->'cluster_by', '[]') as cluster_by, g.position_column,
       k.xmin::text || k.ctid::text as row_version, s.columns
from datasets d join orgs o using (org_id) join generations g on g.generation_id = d.current_generation_id
join generation_cursors k using (generation_id) join generation_schemas s using (generation_id)
where g.position_column is not null and g.data_generation_id is null and d.definition->>'storage' = 'parquet'
  and d.definition->>'retention' is null
  and coalesce((d.definition->'compaction'->>'enabled')::boolean, true)
  and exists (select 1 from job_outputs x join jobs j using (job_id) where x.generation_id = g.generation_id and j.routed
                and j.activation = 'reactive' and j.runtime <> 'dispatcher')
  and exists (select 1 from workers w where w.runtime = $1 and w.seen_at > tp_now() - $2::interval
                and (w.serves is null or o.slug = any(w.serves)))
  and not exists (select 1 from compaction_jobs c join tasks t using (job_id)
                  where c.generation_id = g.generation_id and (t.stage = 0 or t.stage = 1 or t.stage = 3))
order by g.generation_id

-- name: page
-- A page of a generation's live commits, in the order of their positions. Those stay as they are that are young, whose
-- rows failed a check, or whose scope has a failed task: what is known about them is known by their task and time.
select c.commit_id, c.range_start, c.range_end, c.files, c.bytes,
       c.young, exists (select 1 from check_failures f where f.generation_id = $1 and f.task_id = c.task_id offset 0)
         or exists (select 1 from job_outputs x join tasks t on t.job_id = x.job_id and t.stage = 3
                    where x.generation_id = $1 and t.range_start <= c.range_end and t.range_end >= c.range_start offset 0)
       as stays
from (
  select commit_id, task_id, range_start, range_end, bytes, committed_at > tp_now() - $4::interval as young,
         case when row_count = 0 then 0 else jsonb_array_length(files) end as files
  from dataset_commits
  where generation_id = $1 and superseded_by is null and (range_start, commit_id) > ($2::bigint, $3::bigint)
  order by range_start, commit_id limit $5
) c order by c.range_start, c.commit_id

-- name: covered
-- The positions that a generation holds, as ranges in order.
select lower(r) as first, coalesce(upper(r) - 1, 9223372036854775807) as last from unnest(coverage_of($1)) r order by 1

-- name: job
-- The job that compacts a generation.
select j.job_id, j.definition->'config' as config from compaction_jobs c join jobs j using (job_id)
where c.generation_id = $1 for no key update of j

-- name: retire
-- Earlier builds of the dataset are not compacted any more.
with gone as (
  update jobs j set routed = false, revision = revision + 1
  from compaction_jobs c join generations g using (generation_id)
  where j.job_id = c.job_id and g.dataset_uuid = $1 and j.routed returning j.job_id
)
update tasks t set state = 'canceled', finished_at = tp_now() from gone where t.job_id = gone.job_id and t.stage = 0

-- name: begin
-- The job serves at once.
with serving as (update jobs set building = false where job_id = $1)
insert into compaction_jobs (job_id, generation_id) values ($1, $2)

-- name: configure
-- How the job writes files from now on.
update jobs set definition = jsonb_set(definition, '{config}', $2::jsonb), revision = revision + 1 where job_id = $1

-- name: create
-- Tasks that merge the files of ranges.
with drafts as materialized (
  select uuid7() as task_id, n.first, n.last from unnest($3::bigint[], $4::bigint[]) as n (first, last)
), made as (
  insert into tasks (task_id, job_id, state, priority, kind, partition_key, range_start, range_end, created_at, ready_at)
  select task_id, $1, 'queued', 1, 'data', first || '-' || last, first, last, tp_now(), tp_now() from drafts order by first
)
insert into compactions (task_id, generation_id, range_start, range_end, state)
select d.task_id, $2, d.first, d.last, s.state from drafts d cross join lateral files_state($2, d.first, d.last) s

-- name: states
-- What readers see of the ranges of tasks now, and whether that is what their tasks were made for.
select c.task_id, c.state = s.state as is_unchanged, s.rows, s.is_exact, s.committed_at, s.holds_commit
from compactions c cross join lateral files_state(c.generation_id, c.range_start, c.range_end) s
where c.task_id = any($1::uuid[])

-- name: settle
-- The commits of these tasks hold the rows of those that they replaced, as of the newest of them: readers as of a time
-- before it read the earlier ones, others the new one. The scopes of the replaced ones are kept.
with done as materialized (
  select c.commit_id, c.generation_id, f.committed_at, f.holds_commit
  from unnest($1::uuid[], $2::timestamptz[], $3::bigint[]) as f (task_id, committed_at, holds_commit)
  join dataset_commits c using (task_id)
), dated as (
  update dataset_commits c set committed_at = d.committed_at, holds_commit = d.holds_commit
  from done d where c.commit_id = d.commit_id
), retired as (
  update dataset_commits c set superseded_at = d.committed_at, retired_at = tp_now()
  from done d where c.generation_id = d.generation_id and c.superseded_by = d.commit_id
  returning c.commit_id, d.commit_id as newer_id, c.generation_id, c.partition_key, c.range_start, c.range_end,
            c.holds_commit, c.hidden
), kept as (
  insert into compacted_scopes (generation_id, commit_id, partition_key, range_start, range_end)
  select generation_id, newer_id, partition_key, range_start, range_end from retired where holds_commit is null
), gone as (
  delete from compacted_scopes s using retired r
  where s.commit_id = r.commit_id and coalesce(r.hidden, '{}') @> coverage_range(s.range_start, s.range_end)
), forgotten as (
  delete from compactions where task_id = any($1::uuid[])
)
update compacted_scopes s set commit_id = r.newer_id
from retired r where s.commit_id = r.commit_id
  and not coalesce(r.hidden, '{}') @> coverage_range(s.range_start, s.range_end)
