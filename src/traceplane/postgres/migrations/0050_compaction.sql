-- Small files end by themselves. A commit that holds the rows of earlier ones, in fewer files, takes their place like any
-- other that replaces them, and no event is about it.

-- The newest of the commits whose rows it holds: whoever has seen that one has seen all of its rows.
alter table dataset_commits add column holds_commit bigint;
-- When the files of a commit were replaced by others with the same rows. Readers as of an earlier time still find it by
-- `superseded_at`, which is then the time of its successor's newest row.
alter table dataset_commits add column retired_at timestamptz;
drop index dataset_commits_superseded;
create index dataset_commits_superseded on dataset_commits (coalesce(retired_at, superseded_at), commit_id)
  where superseded_by is not null;

-- The scopes of commits whose rows another one holds now: each was one task, and may be one again.
create table compacted_scopes (
  generation_id uuid not null,
  commit_id bigint not null,
  partition_key text,
  range_start bigint not null,
  range_end bigint not null,
  scope_key text not null generated always as (coalesce('p:' || partition_key, 'c:' || range_start::text)) stored
);
create index compacted_scopes_by_scope on compacted_scopes (generation_id, range_start);
create index compacted_scopes_by_commit on compacted_scopes (commit_id);

-- The scopes in which readers see rows, as tasks committed them.
create function live_scopes(generation uuid)
  returns table (partition_key text, range_start bigint, range_end bigint, scope_key text)
  language sql stable parallel safe as $$
  select c.partition_key, c.range_start, c.range_end, c.scope_key from dataset_commits c
  where c.generation_id = generation and c.superseded_by is null and c.holds_commit is null
  union all
  select s.partition_key, s.range_start, s.range_end, s.scope_key
  from compacted_scopes s join dataset_commits c using (commit_id)
  where s.generation_id = generation and c.superseded_by is null
    and not coalesce(c.hidden, '{}') @> coverage_range(s.range_start, s.range_end)
$$;

-- The job that compacts a generation. It reads and writes it, and is nobody's producer or reader.
create table compaction_jobs (
  job_id uuid primary key references jobs on delete cascade,
  generation_id uuid not null unique references generations on delete cascade
);

-- What a task of it is to compact, and what was there when it was made: its result counts only if that is there still.
create table compactions (
  task_id uuid primary key,
  generation_id uuid not null,
  range_start bigint not null,
  range_end bigint not null,
  state text not null
);

-- What readers see of a range. Commit ids only grow, as does what is hidden, so no state ever returns.
create function files_state(generation uuid, first bigint, last bigint,
    out state text, out rows bigint, out is_exact boolean, out committed_at timestamptz, out holds_commit bigint)
  language sql stable as $$
  select md5(string_agg(c.commit_id || coalesce(c.hidden::text, ''), ',' order by c.commit_id)),
         coalesce(sum(c.row_count), 0)::bigint,
         coalesce(bool_and(c.hidden is null and c.range_start >= first and c.range_end <= last), true),
         max(c.committed_at), max(coalesce(c.holds_commit, c.commit_id))
  from generation_cursors k join dataset_commits c using (generation_id)
  where k.generation_id = generation and c.superseded_by is null
    and c.range_start >= greatest(first::numeric - k.widest, -9223372036854775808)::bigint
    and c.range_start <= last and c.range_end >= first
$$;

call belongs_to_org('{compaction_jobs}', 'exists (select 1 from jobs p where p.job_id = THIS.job_id)');
call belongs_to_org('{compacted_scopes, compactions}',
  'exists (select 1 from generations p where p.generation_id = THIS.generation_id)');
