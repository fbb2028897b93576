-- What a query reads: which generations, and which of their files. All of it runs in one snapshot.

-- name: datasets
-- Datasets by name, each with the requested generation: of a version of its DAG ($3, $4), of a time ($5), or the current
-- one; where its rows are, and their declared columns, including those of the dataset that owns the rows. `found_in`: the
-- datasets whose readers it has, now and then, and their roles; if one is gone, only admins are left.
-- Without names: all datasets that are served or being built, without deleted ones.
with wanted as materialized (
  select d.org_id, d.dataset_uuid, d.dataset_id, d.dag_id, d.definition, d.current_generation_id, g.name as dag,
         case when n.number is not null
                then (select v.dag_version_id from dag_versions v where v.dag_id = d.dag_id and v.number = n.number)
              when $5::timestamptz is not null
                then (select a.dag_version_id from dag_activations a
                      where a.dag_id = d.dag_id and a.activated_at <= $5
                      order by a.activated_at desc, a.activation_id desc limit 1)
              else g.active_version_id end as dag_version_id,
         n.number is not null or $5::timestamptz is not null as historic
  from datasets d join orgs o using (org_id) join dags g on g.dag_id = d.dag_id
  left join unnest($3::text[], $4::int[]) as n (dag, number) on n.dag = g.name
  where o.slug = $1 and (d.dataset_id = any($2::text[]) or $2 is null and (d.current_generation_id is not null or exists (
    select 1 from dag_versions b join dag_version_datasets m using (dag_version_id)
    where b.dag_id = d.dag_id and b.state = 'building' and m.dataset_uuid = d.dataset_uuid)))
), specified as materialized (  -- each version is taken apart once, however many of its datasets are wanted
  select v.dag_version_id, d.definition->>'dataset_id' as dataset_id, d.definition
  from (select distinct dag_version_id from wanted) w join dag_versions v using (dag_version_id)
  cross join lateral jsonb_array_elements(v.spec->'datasets') d (definition)
), pinned as materialized (
  select w.*, v.number as version,
         case when w.historic then m.generation_id else w.current_generation_id end as generation_id,
         s.definition as versioned_definition
  from wanted w
  left join dag_versions v on v.dag_version_id = w.dag_version_id
  left join specified s on s.dag_version_id = w.dag_version_id and s.dataset_id = w.dataset_id
  left join dag_version_datasets m on m.dag_version_id = w.dag_version_id and m.dataset_uuid = w.dataset_uuid
)
select p.dataset_uuid, p.dataset_id, p.dag, p.version, p.generation_id, p.definition, p.versioned_definition,
       r.generation_id as row_generation_id, r.position_column, owner.definition as owner_definition,
       coalesce((
         select jsonb_agg(jsonb_build_array(f.dataset_id, f.read_roles)) from (
           select n.name, case when s.dataset_uuid is null then '[]' else s.definition->'read_roles' end
           from (values (p.definition->>'readers_of'), (p.versioned_definition->>'readers_of')) n (name)
           left join datasets s on s.org_id = p.org_id and s.dataset_id = n.name where n.name is not null
           union
           select w.dataset_id, w.definition->'read_roles'
           from datasets s join generations c on c.generation_id = s.current_generation_id
           join generations e on e.generation_id = c.data_generation_id join datasets w on w.dataset_uuid = e.dataset_uuid
           where s.org_id = p.org_id
             and s.dataset_id in (p.definition->>'readers_of', p.versioned_definition->>'readers_of')
         ) f (dataset_id, read_roles)), '[]') as found_in,
       (select v.definition -> 'partitions' from dag_version_datasets v where v.generation_id = r.generation_id limit 1)
       as row_partitions,
       -- Of a dataset that was rebuilt after it had dropped everything, the columns are those that it had.
       coalesce(s.columns, case when exists (select 1 from dropped_positions x where x.dataset_uuid = r.dataset_uuid) then (
         select o.columns from generations e join generation_schemas o using (generation_id)
         where e.dataset_uuid = r.dataset_uuid order by e.created_at desc, e.generation_id desc limit 1) end) as columns,
       k.position as cursor, k.forgotten_until, k.xmin::text || k.ctid::text as row_version,
       t.created_at as generation_created_at,
       case when s.columns is null then (select j.name from job_outputs x join jobs j using (job_id)
         where x.generation_id = r.generation_id and j.source_kind in ('manual', 'webhook', 'cron')
         order by j.routed desc limit 1) end as source
from pinned p
left join generations t on t.generation_id = p.generation_id
left join generations r on r.generation_id = coalesce(t.data_generation_id, t.generation_id)
left join datasets owner on owner.dataset_uuid = r.dataset_uuid
left join generation_schemas s on s.generation_id = r.generation_id
left join generation_cursors k on k.generation_id = r.generation_id
order by p.dataset_id

-- name: names
-- The first names, after one, of all datasets as above that have some text in their name, that of their DAG or their
-- description.
select d.dataset_id
from datasets d join orgs o using (org_id) join dags g on g.dag_id = d.dag_id
where o.slug = $1 and ($3::text is null or d.dataset_id > $3) and (d.current_generation_id is not null or exists (
    select 1 from dag_versions b join dag_version_datasets m using (dag_version_id)
    where b.dag_id = d.dag_id and b.state = 'building' and m.dataset_uuid = d.dataset_uuid))
  and ($2::text is null
    or strpos(lower(concat_ws(' ', d.dataset_id, g.name, d.definition->>'description')), lower($2)) > 0)
order by d.dataset_id limit $4

-- name: last_version_with
-- The last version that served a dataset.
select v.dag_version_id, v.number, v.state
from datasets d join orgs o using (org_id) join dag_version_datasets m using (dataset_uuid)
join dag_versions v on v.dag_version_id = m.dag_version_id and v.dag_id = d.dag_id
where o.slug = $1 and d.dataset_id = $2 and v.activated_at is not null
order by v.activated_at desc limit 1

-- name: live_ids
-- The live commits of a generation, ordered by position. An index-only scan.
select coalesce(array_agg(commit_id order by range_start, commit_id), '{}')
from dataset_commits where generation_id = $1 and superseded_by is null

-- name: live_count
-- An index-only scan too.
select count(*) from dataset_commits where generation_id = $1 and superseded_by is null

-- name: hidden
-- The live commits of a generation that newer ones have partly replaced.
select commit_id, jsonb_agg(jsonb_build_array(lower(h), coalesce(upper(h) - 1, 9223372036854775807))) as hidden
from dataset_commits, unnest(hidden) h
where generation_id = $1 and hidden is not null and superseded_by is null group by commit_id

-- name: commits_at
-- The commits of a generation that were live at a time. Of the positions hidden today, those were hidden then that
-- commits made by then cover. $3: only commits with rows.
with there as materialized (
  select commit_id, range_start, range_end, hidden, jsonb_array_length(files) as files, row_count from dataset_commits
  where generation_id = $1 and superseded_by is null and committed_at <= $2
  union all
  -- A commit that was superseded as a whole since then no longer records which part was hidden before.
  select commit_id, range_start, range_end, '{(,)}'::int8multirange, jsonb_array_length(files), row_count from dataset_commits
  where generation_id = $1 and superseded_by is not null and superseded_at > $2 and committed_at <= $2
), shown as (
  select t.commit_id, t.range_start, t.range_end, t.files, t.row_count,
    case when t.hidden is not null then t.hidden * coalesce((
      select range_agg(int8range(n.range_start, nullif(n.range_end, 9223372036854775807), '[]')) from there n
      where n.commit_id > t.commit_id and n.range_start <= t.range_end and n.range_end >= t.range_start), '{}') end as hidden
  from there t
)
select commit_id, range_start, range_end, files,
  (select jsonb_agg(jsonb_build_array(lower(h), coalesce(upper(h) - 1, 9223372036854775807))) from unnest(hidden) h) as hidden
from shown where row_count > 0 or not $3 order by range_start, commit_id

-- name: live
-- The live commits of a generation, ordered by position, as one row: a client takes longer to read a hundred thousand
-- rows than Postgres to find them. Most commits have one file with rows; for the others the path is null.
select coalesce(array_agg(commit_id), '{}') as ids, coalesce(array_agg(range_start), '{}') as firsts,
       coalesce(array_agg(range_end), '{}') as lasts, coalesce(array_agg(path), '{}') as paths,
       coalesce(array_agg(bytes), '{}') as bytes, coalesce(array_agg(row_count), '{}') as rows
from (select commit_id, range_start, range_end, bytes, row_count, case when jsonb_array_length(files) = 1 and files->0->'rows' <> '0'
             then files->0->>'path' end as path
      from dataset_commits where generation_id = $1 and superseded_by is null order by range_start, commit_id) c

-- name: live_page
-- The live commits with rows of a generation after a position and an id, ordered by both: some of them, as one row.
select coalesce(array_agg(commit_id), '{}') as ids, coalesce(array_agg(range_start), '{}') as firsts,
       coalesce(array_agg(range_end), '{}') as lasts, coalesce(array_agg(files), '{}') as files
from (select commit_id, range_start, range_end, jsonb_array_length(files) as files from dataset_commits
      where generation_id = $1 and superseded_by is null and row_count > 0 and (range_start, commit_id) > ($2::bigint, $3::bigint)
      order by range_start, commit_id limit $4) c

-- name: live_paths
-- The files of a generation's live commits. Most commits have one, which is found without a subquery. Files without rows
-- are left out: no query needs them, and one that has no columns either cannot be opened.
select commit_id, range_start, range_end, bytes, row_count, case when jsonb_array_length(files) = 1 and files->0->'rows' <> '0'
    then array[files->0->>'path']
  else array(select f.file->>'path' from jsonb_array_elements(files) with ordinality f (file, n)
             where f.file->'rows' <> '0' order by f.n) end as paths
from dataset_commits where generation_id = $1 and superseded_by is null

-- name: paths
-- The same of single commits.
select commit_id, range_start, range_end, bytes, row_count, case when jsonb_array_length(files) = 1 and files->0->'rows' <> '0'
    then array[files->0->>'path']
  else array(select f.file->>'path' from jsonb_array_elements(files) with ordinality f (file, n)
             where f.file->'rows' <> '0' order by f.n) end as paths
from dataset_commits where commit_id = any($1::bigint[])

-- name: files
-- The files of single commits with rows, as they are stored: with sizes and statistics.
select commit_id, committed_at, jsonb_path_query_array(files, '$[*] ? (@.rows != 0)') as files
from dataset_commits where commit_id = any($1::bigint[])

-- name: writing_since
-- When the oldest transaction began that may still write. Of sessions of other roles Postgres does not say: they began
-- within the longest time that a statement of ours may take.
select min(coalesce(xact_start, now() - interval '60 seconds')) from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
  and (xact_start is not null or state is null) and application_name is distinct from 'traceplane reader'

-- name: today
-- The day of UTC, some time ago.
select ((tp_now() - $1::interval) at time zone 'UTC')::date

-- name: clock
-- The time, and how far the platform's own clock is ahead of it.
select now() as now, tp_now() - now() as ahead

-- name: file_sizes
-- The files that tasks committed, with their sizes.
select f.file->>'path' as path, (f.file->>'bytes')::bigint as bytes
from dataset_commits, jsonb_array_elements(files) f (file) where task_id = any($1::uuid[])

-- name: live_statistics
-- The row count of each file of a generation's live commits that has rows, and the statistics of one column in it.
select commit_id, case when jsonb_array_length(files) = 1 and files->0->'rows' <> '0'
    then jsonb_build_array(jsonb_build_array(files->0->'rows', files->0->'statistics'->$2::text))
  else (select jsonb_agg(jsonb_build_array(f.file->'rows', f.file->'statistics'->$2::text) order by f.n)
        from jsonb_array_elements(files) with ordinality f (file, n) where f.file->'rows' <> '0') end as known
from dataset_commits where generation_id = $1 and superseded_by is null

-- name: statistics
-- The same of single commits.
select commit_id, case when jsonb_array_length(files) = 1 and files->0->'rows' <> '0'
    then jsonb_build_array(jsonb_build_array(files->0->'rows', files->0->'statistics'->$2::text))
  else (select jsonb_agg(jsonb_build_array(f.file->'rows', f.file->'statistics'->$2::text) order by f.n)
        from jsonb_array_elements(files) with ordinality f (file, n) where f.file->'rows' <> '0') end as known
from dataset_commits where commit_id = any($1::bigint[])

-- name: sizes
-- Rows and bytes of generations that readers see; `at_most` if newer commits have replaced some of the counted rows.
select generation_id, commits, least(row_count, 9223372036854775807)::bigint as rows,
       least(bytes, 9223372036854775807)::bigint as bytes, partly_hidden > 0 as at_most
from generation_totals where generation_id = any($1::uuid[]) and commits > 0

-- name: producers
-- The jobs that write and read generations.
select x.generation_id, d.name as dag, j.name as job, j.operator, j.definition->'config' as config,
       x.name as output, true as writes, j.definition->'virtual'->'inputs' as virtual_inputs
from job_outputs x join jobs j using (job_id) join dags d using (dag_id) where x.generation_id = any($1::uuid[]) and j.routed
  -- A source that will take over from the serving one has not emitted anything yet.
  and not (j.building and exists (select 1 from datasets s where s.current_generation_id = x.generation_id))
union all
select i.generation_id, d.name, j.name, j.operator, null, null, false, null
from job_inputs i join jobs j using (job_id) join dags d using (dag_id) where i.generation_id = any($1::uuid[]) and j.routed

-- name: read_by
-- Jobs that read a virtual dataset, directly or through others.
select d.name as dag, j.name as job from jobs j join dags d using (dag_id) join orgs o using (org_id)
where j.routed and j.definition ? 'virtual' and o.slug = $1 and j.definition->'virtual'->'datasets' ? $2::text

-- name: inputs_of
-- The inputs of the producer of a generation, with their names.
select i.name, d.dataset_id, coalesce(g.data_generation_id, g.generation_id) as row_generation_id, s.columns
from job_outputs x join jobs j on j.job_id = x.job_id and j.routed join job_inputs i on i.job_id = x.job_id
join datasets d on d.dataset_uuid = i.dataset_uuid join generations g on g.generation_id = i.generation_id
left join generation_schemas s on s.generation_id = coalesce(g.data_generation_id, g.generation_id)
where x.generation_id = $1 order by i.input_index
