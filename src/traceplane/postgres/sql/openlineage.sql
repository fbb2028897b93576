-- What receivers of OpenLineage events are told about tasks, and what they have been told.

-- name: lease
-- This process ($1) tells of the runs for a while, unless another one does. It begins with what there is now ($3).
insert into openlineage_progress as p (followed_to, holder, expires_at) values ($3, $1, tp_now() + $2::interval)
on conflict (only_row) do update set holder = excluded.holder, expires_at = excluded.expires_at
where p.holder is null or p.holder = excluded.holder or p.expires_at < tp_now()
returning xmax = 0 as is_new

-- name: release
-- The lease of a process that stops.
update openlineage_progress set holder = null where holder = $1

-- name: follow_unfinished
-- What was under way when the first event is to be sent, of these organizations (null: of all). Younger tasks are found
-- by their ids.
insert into openlineage_runs (task_id)
select t.task_id from tasks t join jobs j using (job_id) join dags d using (dag_id) join orgs o using (org_id)
where (t.stage = 0 or t.stage = 1) and t.task_id < (select followed_to from openlineage_progress)
  and ($1::text[] is null or o.slug = any($1))
on conflict do nothing

-- name: oldest_writer
-- A moment before which no transaction began that may still create tasks. Of sessions of other roles Postgres does not
-- say when they did: within the longest time that a statement of ours may take. Ids of tasks have the time of this clock,
-- whatever `tp_now` says; a session shows its transaction a little after it has begun.
select least(now(), (
  select min(coalesce(xact_start, now() - interval '60 seconds')) from pg_stat_activity
  where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
    and (xact_start is not null or state is null) and application_name is distinct from 'traceplane reader'
)) - interval '1 second'

-- name: follow
-- The next tasks that were created before a moment ($2: the first id of that time), of these organizations (null: of all).
with progress as materialized (
  select followed_to from openlineage_progress where holder = $1 for update
), page as materialized (
  select t.task_id, t.job_id from tasks t
  where t.task_id > (select followed_to from progress) and t.task_id < $2 order by t.task_id limit $3
), added as (
  insert into openlineage_runs (task_id)
  select p.task_id from page p join jobs j using (job_id) join dags d using (dag_id) join orgs o using (org_id)
  where $4::text[] is null or o.slug = any($4)
  on conflict do nothing returning 1
), moved as (
  update openlineage_progress p set followed_to = greatest(p.followed_to, case when (select count(*) from page) = $3
    then (select (array_agg(task_id order by task_id desc))[1] from page) else $2 end)
  where p.holder = $1
)
select (select count(*) from added) as added, (select count(*) from page) = $3 as more

-- name: changed
-- Of the next $2 runs after one, those of which there is something to tell, and where the next page begins. The tasks of
-- some may have been deleted, with the history that has ended.
with page as materialized (
  select * from openlineage_runs where task_id > $1 order by task_id limit $2
), changed as materialized (
  select p.task_id, p.ended_runs, p.ended_at, p.started, t.job_id, t.state, t.attempt, t.kind, t.partition_key,
         t.range_start, t.range_end, t.started_at, t.finished_at, t.error
  from page p left join tasks t using (task_id)
  where t.task_id is null
    or p.started and (t.stage = 2 or t.stage = 3)
    or not p.started and t.started_at > coalesce(p.ended_at, '-infinity')
  order by p.task_id limit $3
)
select (select coalesce(jsonb_agg(to_jsonb(c) order by c.task_id), '[]') from changed c) as runs,
       extract(epoch from tp_now() - (select min(coalesce(finished_at, started_at)) from changed))::float8 as lag_seconds,
       case when (select count(*) from changed) = $3 then (select (array_agg(task_id order by task_id desc))[1] from changed)
            when (select count(*) from page) = $2 then (select (array_agg(task_id order by task_id desc))[1] from page)
       end as next_after

-- name: jobs_of_tasks
-- The jobs of tasks, with what they read and write and the newest version of their DAG that has them. Columns are those
-- of the files; before there are any, those that the DAG file declares.
select j.job_id, j.revision, o.slug as org, d.name as dag, j.name as job, j.operator, j.source_kind,
       j.definition->'config' as config, j.definition->'lineage' as lineage, v.dag_version_id, v.number as version,
       coalesce(jsonb_path_query_first(v.spec, '$.jobs[*] ? (@.name == $n).description', jsonb_build_object('n', j.name))
                #>> '{}', '') as description,
       coalesce((
         select jsonb_agg(jsonb_build_object(
           'name', i.name, 'dataset_id', x.dataset_id, 'generation_id', i.generation_id,
           'description', coalesce(m.definition->>'description', ''),
           'columns', coalesce(s.columns, m.definition->'columns', '[]'), 'partitions', null) order by i.input_index)
         from job_inputs i join datasets x using (dataset_uuid) join generations g on g.generation_id = i.generation_id
         left join generation_schemas s on s.generation_id = coalesce(g.data_generation_id, g.generation_id)
         left join lateral (select definition from dag_version_datasets n where n.generation_id = i.generation_id limit 1) m
           on true
         where i.job_id = j.job_id and i.role is distinct from 'triggers'), '[]') as inputs,
       coalesce((
         select jsonb_agg(jsonb_build_object(
           'name', u.name, 'dataset_id', x.dataset_id, 'generation_id', u.generation_id,
           'description', coalesce(m.definition->>'description', ''),
           'columns', coalesce(s.columns, m.definition->'columns', '[]'), 'partitions', m.definition->'partitions')
           order by u.output_index)
         from job_outputs u join datasets x using (dataset_uuid)
         left join generation_schemas s on s.generation_id = u.generation_id
         left join lateral (select definition from dag_version_datasets n where n.generation_id = u.generation_id limit 1) m
           on true
         where u.job_id = j.job_id), '[]') as outputs
from jobs j join dags d using (dag_id) join orgs o using (org_id)
left join lateral (
  select w.dag_version_id, w.number, w.spec from dag_version_jobs k join dag_versions w using (dag_version_id)
  where k.job_id = j.job_id order by w.dag_version_id = d.active_version_id desc, w.number desc limit 1
) v on true
where j.job_id = any($1::uuid[])

-- name: written
-- What tasks committed, by output.
select task_id, generation_id, sum(row_count)::bigint as rows, sum(bytes)::bigint as bytes,
       sum(jsonb_array_length(files))::bigint as files
from dataset_commits where task_id = any($1::uuid[]) group by task_id, generation_id

-- name: executions
-- The executions of pipelines that tasks are.
select e.execution_id as task_id, p.name as pipeline from executions e join pipelines p using (pipeline_id)
where e.execution_id = any($1::uuid[])

-- name: told
-- What was told, as long as this process has the lease, which it keeps: of these runs the beginning or the end. Those of
-- which nothing more can be told ($6) are forgotten.
with held as (
  update openlineage_progress set expires_at = tp_now() + $2::interval where holder = $1 returning 1
), changed as (
  update openlineage_runs r set started = u.started, ended_runs = r.ended_runs + (u.ended_at is not null)::int,
    ended_at = coalesce(u.ended_at, r.ended_at)
  from unnest($3::uuid[], $4::boolean[], $5::timestamptz[]) as u (task_id, started, ended_at)
  where r.task_id = u.task_id and exists (select 1 from held)
), forgotten as (
  delete from openlineage_runs r where r.task_id = any($6::uuid[]) and exists (select 1 from held)
)
select exists (select 1 from held)
