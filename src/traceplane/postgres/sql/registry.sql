-- What is deployed.

-- name: lock_dag
-- The DAG's row, created if new, locked so that two deploys of one DAG take turns.
with made as (
  insert into dags (org_id, name) select org_id, $2 from orgs where slug = $1
  on conflict (org_id, name) do update set name = excluded.name
  returning dag_id, org_id, active_version_id
)
select * from made

-- name: active_version
-- The deployed version of a DAG.
select v.dag_version_id, v.number, v.spec, v.job_fingerprints, v.definition_fingerprints
from dags d join orgs o using (org_id) join dag_versions v on v.dag_version_id = d.active_version_id
where o.slug = $1 and d.name = $2

-- name: building_version
-- The version of a DAG that is being built.
select v.dag_version_id, v.number, v.spec, v.job_fingerprints, v.definition_fingerprints
from dags d join orgs o using (org_id) join dag_versions v on v.dag_id = d.dag_id and v.state = 'building'
where o.slug = $1 and d.name = $2

-- name: partitions_written
-- How the datasets are partitioned that jobs of a DAG compute.
select distinct d.definition->'partitions' as partitions
from dags g join orgs o using (org_id) join jobs j using (dag_id)
join job_outputs x using (job_id) join datasets d using (dataset_uuid)
where o.slug = $1 and g.name = $2 and ($3::text is null or j.name = $3)
  and j.routed and j.activation = 'reactive' and j.runtime <> 'dispatcher'

-- name: add_version
-- The next version of a DAG, to be built.
insert into dag_versions (dag_id, number, spec, job_fingerprints, definition_fingerprints, manual_cutover, drop_missing, state)
select $1, coalesce(max(number), 0) + 1, $2, $3, $4, $5, $6, 'building' from dag_versions where dag_id = $1
returning dag_version_id, number

-- name: datasets_by_id
-- Datasets by name, with owner and current generation; names that a deleted DAG owned are free.
select d.dataset_uuid, d.dataset_id, g.name as dag, d.current_generation_id, d.definition,
       g.active_version_id is null
         and not exists (select 1 from dag_versions v where v.dag_id = d.dag_id and v.state = 'building') as free
from datasets d join dags g using (dag_id) join orgs o on o.org_id = d.org_id
where o.slug = $1 and d.dataset_id = any($2::text[])

-- name: dataset_names
-- Datasets that serve, with those first whose names are about as long as a given one.
select d.dataset_id from datasets d join orgs o using (org_id)
where o.slug = $1 and d.current_generation_id is not null
order by abs(length(d.dataset_id) - length($2::text)), d.dataset_id limit $3

-- name: job_names
-- All DAGs and their jobs, deployed or not.
select d.name as dag, coalesce(array_agg(distinct j.name) filter (where j.name is not null), '{}') as jobs
from dags d join orgs o using (org_id) left join jobs j using (dag_id)
where o.slug = $1 group by d.name order by d.name

-- name: add_dataset
-- A dataset this DAG owns; an existing one keeps the definition of the serving version.
insert into datasets (org_id, dataset_id, dag_id, definition) values ($1, $2, $3, $4)
on conflict (org_id, dataset_id) do update set dag_id = excluded.dag_id
returning dataset_uuid

-- name: add_generation
-- A new build of a dataset; $3 is the generation its rows are read from, if they are not its own.
insert into generations (generation_id, dataset_uuid, fingerprint, data_generation_id, position_column, storage)
select n.generation_id, d.dataset_uuid, $2,
       (select coalesce(data_generation_id, generation_id) from generations where generation_id = $3), $4,
       'o/' || d.org_id || '/' || d.dataset_uuid || '/' || n.generation_id || '/'
from datasets d, (select uuid7() as generation_id offset 0) n where d.dataset_uuid = $1
returning generation_id

-- name: map_dataset
-- A dataset of a version: its generation, and its definition.
insert into dag_version_datasets (dag_version_id, dataset_uuid, generation_id, definition) values ($1, $2, $3, $4)

-- name: generations_of
-- The pointer set of a version, by name.
select d.dataset_id, v.generation_id from dag_version_datasets v join datasets d using (dataset_uuid)
where v.dag_version_id = $1

-- name: serving_jobs
-- The jobs of a DAG that produce what readers see.
select job_id, name from jobs where dag_id = $1 and routed and not building

-- name: add_job
-- A job with its materializing definition and its execution settings. It receives events immediately.
insert into jobs (dag_id, name, fingerprint, activation, source_kind, runtime, operator, definition, routed, building,
                  priority, max_concurrency, dispatch_window, max_queue_depth, max_queue_age, timeout, lease,
                  max_attempts, retry_base, retry_max, network, backfill_concurrency, function, requires,
                  secrets, org_queue)
values ($1, $2, $3, $4, $5, $6, $7, $8, true, true, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21,
        $22, $23, (select o.queue_suffix from dags d join orgs o using (org_id) where d.dag_id = $1))
returning job_id

-- name: clear_pressure
-- Deletes holds of or by retired jobs.
with holds as (delete from job_holds where job_id = any($1::uuid[]) or caused_by = any($1::uuid[]))
delete from job_pressure where job_id = any($1::uuid[])

-- name: add_job_input
-- An edge into a job.
insert into job_inputs (job_id, input_index, name, dataset_uuid, generation_id, filter, columns, read, role)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: add_job_output
-- An edge out of a job.
insert into job_outputs (job_id, output_index, name, dataset_uuid, generation_id) values ($1, $2, $3, $4, $5)

-- name: datasets_of_dag
-- The datasets of a DAG, and the virtual datasets of other DAGs.
select d.dataset_id, d.dag_id = $2 as own, g.name as dag, d.definition->>'sql' as sql
from datasets d join dags g using (dag_id) join orgs o on o.org_id = d.org_id
where o.slug = $1 and d.current_generation_id is not null
  and (d.dag_id = $2 or d.definition->>'sql' is not null)
order by d.dataset_id

-- name: pipelines_of_dag
-- Pipelines that run a job of a DAG.
select p.user_id, p.name from pipelines p join orgs o using (org_id)
where o.slug = $1 and p.config->>'dag' = $2 and p.is_active and p.deleted_at is null order by p.user_id, p.name

-- name: readers_of_virtual
-- Jobs of other DAGs that read virtual datasets, directly or through others.
select o.slug as org, g.name as dag, j.name as job, j.job_id, j.definition, '{}'::jsonb as reads
from jobs j join dags g using (dag_id) join orgs o using (org_id)
where j.routed and j.definition ? 'virtual' and o.slug = $1 and g.name <> $2
  and j.definition->'virtual'->'datasets' ?| $3::text[]
order by dag, job

-- name: virtual_readers_to_follow
-- Jobs with virtual inputs of other DAGs that receive events, and those of the version itself: what a virtual dataset of
-- somebody else means may have changed, now or while the version was retired. With the generations they read by dataset.
select o.slug as org, g.name as dag, j.name as job, j.job_id, j.definition,
  coalesce((select jsonb_object_agg(d.dataset_id, i.generation_id)
    from job_inputs i join datasets d using (dataset_uuid) where i.job_id = j.job_id), '{}') as reads
from jobs j join dags g using (dag_id) join orgs o using (org_id)
where j.definition ? 'virtual' and j.routed
  and (j.dag_id <> $1 or exists (select 1 from dag_version_jobs v where v.dag_version_id = $2 and v.job_id = j.job_id))
  and o.org_id = (select org_id from dags where dag_id = $1)
order by j.job_id for update of j

-- name: redefine_inputs
-- Replaces the definition of a job and deletes its inputs, which the caller adds again; what it read is kept.
with gone as (
  delete from job_inputs where job_id = $1 returning job_id, name, generation_id, columns, role
), kept as (
  insert into past_job_inputs (job_id, name, generation_id, columns, virtual)
  select j.job_id, i.name, coalesce(g.data_generation_id, g.generation_id), i.columns, j.definition->'virtual'
  from gone i join jobs j using (job_id) join generations g using (generation_id)
  where i.role <> 'triggers' on conflict do nothing
)
update jobs set definition = $2, revision = revision + 1 where job_id = $1

-- name: map_job
-- A job of a version: how the version meters it, when it fires it, if it is a cron source, and the parts of its
-- definition that change in place.
insert into dag_version_jobs (dag_version_id, job_id, priority, max_concurrency, dispatch_window, max_queue_depth,
                              max_queue_age, timeout, lease, max_attempts, retry_base, retry_max, network,
                              backfill_concurrency, function, requires, secrets, source, in_place)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)

-- name: job_payloads
-- What workers need to know about jobs; fixed for one (job_id, revision). One that compacts a generation reads and
-- writes it, although it is neither its reader nor its producer.
with reads as materialized (
  select job_id, input_index, name, dataset_uuid, generation_id, filter, columns, read, role
  from job_inputs where job_id = any($1::uuid[])
  union all
  select c.job_id, 0, 'files', g.dataset_uuid, c.generation_id, '{}', '[]', '{}', 'feeds'
  from compaction_jobs c join generations g using (generation_id) where c.job_id = any($1::uuid[])
), writes as materialized (
  select job_id, output_index, name, dataset_uuid, generation_id from job_outputs where job_id = any($1::uuid[])
  union all
  select c.job_id, 0, 'files', g.dataset_uuid, c.generation_id
  from compaction_jobs c join generations g using (generation_id) where c.job_id = any($1::uuid[])
)
select j.job_id, j.revision, j.name, j.runtime, j.operator, j.definition, j.activation, j.source_kind, o.slug as org,
  d.name as dag,
  extract(epoch from j.timeout)::float8 as timeout_seconds, extract(epoch from j.lease)::float8 as lease_seconds,
  j.max_attempts, j.network, j.function, j.requires, j.secrets,
  coalesce((select jsonb_agg(jsonb_build_object('input_index', i.input_index, 'name', i.name,
      'dataset_uuid', i.dataset_uuid, 'dataset_version', i.generation_id, 'dataset_id', ds.dataset_id,
      'where', i.filter, 'columns', i.columns, 'position', rows.position_column, 'time_column', i.read->>'time_column',
      'storage', storage_of(rows),
      'hot', exists (select 1 from hot_tables h where h.generation_id = rows.generation_id),
      'with_files', exists (select 1 from job_outputs x join jobs f on f.job_id = x.job_id
        where x.generation_id = i.generation_id and f.source_kind = 'file' and f.dag_id = j.dag_id
          and f.definition->>'generated_for' = j.name)) order by i.input_index)
    from reads i join datasets ds using (dataset_uuid) join generations g using (generation_id)
    join generations rows on rows.generation_id = coalesce(g.data_generation_id, g.generation_id)
    where i.job_id = j.job_id and i.role <> 'triggers'), '[]') as inputs,
  coalesce((select array_agg(coalesce(g.data_generation_id, g.generation_id) order by i.input_index)
    from reads i join generations g using (generation_id)
    where i.job_id = j.job_id and i.role <> 'triggers'), '{}') as row_generations,
  coalesce((select jsonb_agg(coalesce((select v.definition -> 'columns' from dag_version_datasets v
      where v.generation_id = coalesce(g.data_generation_id, g.generation_id) limit 1), '[]') order by i.input_index)
    from reads i join generations g using (generation_id)
    where i.job_id = j.job_id and i.role <> 'triggers'), '[]') as input_columns,
  exists (select 1 from reads i join generations g using (generation_id)
    join job_outputs x on x.generation_id = coalesce(g.data_generation_id, g.generation_id)
    join jobs pj on pj.job_id = x.job_id
    where i.job_id = j.job_id and (pj.runtime <> 'dispatcher'
      or exists (select 1 from hot_tables h where h.generation_id = x.generation_id))) as reads_files,
  coalesce((select jsonb_agg(jsonb_build_object('output_index', x.output_index, 'name', x.name,
      'dataset_uuid', x.dataset_uuid, 'dataset_version', x.generation_id, 'dataset_id', ds.dataset_id,
      'storage', storage_of(g),
      'columns', coalesce((select v.definition -> 'columns' from dag_version_datasets v
        where v.generation_id = x.generation_id limit 1), '[]'))
      order by x.output_index)
    from writes x join datasets ds using (dataset_uuid) join generations g using (generation_id)
    where x.job_id = j.job_id), '[]') as outputs,
  coalesce((select jsonb_agg(jsonb_build_object('input_index', i.input_index, 'generation_id', i.generation_id,
      'row_generation_id', (select coalesce(g.data_generation_id, g.generation_id) from generations g
        where g.generation_id = i.generation_id), 'role', i.role, 'read', i.read, 'partitions', coalesce((select v.definition -> 'partitions'
        from dag_version_datasets v where v.generation_id = i.generation_id limit 1), '{}')) order by i.input_index)
    from reads i where i.job_id = j.job_id), '[]') as job_inputs,
  (select v.definition -> 'partitions' from writes x join dag_version_datasets v using (generation_id)
   where x.job_id = j.job_id order by x.output_index limit 1) as partitions
from jobs j join dags d using (dag_id) join orgs o using (org_id)
where j.job_id = any($1::uuid[])

-- name: manual_target
-- The source jobs and current generations behind datasets, each of an organization, that people may emit events for.
-- `voice` is the first source of the generation: later ones emit in its name, so that duplicates are recognized. What the
-- operator of a source writes stands for the events that it runs for.
select o.slug as org, ds.dataset_id, coalesce(e.generation_id, ds.current_generation_id) as generation_id,
  j.name as job, coalesce(e.source_kind, j.source_kind) as source_kind, ds.definition->'partitions' as partitions,
  (select f.job_id from job_outputs f
   where f.generation_id = coalesce(e.generation_id, ds.current_generation_id) order by f.job_id limit 1) as voice
from unnest($1::text[], $2::text[]) as w (org, dataset_id)
join orgs o on o.slug = w.org join datasets ds on ds.org_id = o.org_id and ds.dataset_id = w.dataset_id
left join lateral (
  select j.* from job_outputs x join jobs j using (job_id)
  where x.generation_id = ds.current_generation_id and j.routed and not j.building) j on true
left join lateral (
  select s.source_kind, x.generation_id from jobs s join job_outputs x using (job_id)
  where s.dag_id = j.dag_id and s.name = j.name || '__events' and s.routed and not s.building
    and s.definition->>'generated_for' = j.name and s.source_kind is not null) e on true

-- name: backfill_target
-- The job that produces a dataset, and the size of the ranges that feed it, if any.
select ds.current_generation_id as generation_id, j.job_id, j.name as job, j.activation, j.runtime,
       range_size_of(j.job_id) as range_size, ds.definition->'partitions' as partitions,
       exists (select 1 from job_inputs i join job_outputs o using (generation_id) join jobs a on a.job_id = o.job_id
         where i.job_id = j.job_id and a.runtime = 'dispatcher' and a.operator = any($3::text[])
           and a.definition->'config'->>'size' is null and a.definition->'config'->>'each' is null) as open_batches,
       exists (select 1 from job_inputs i join job_outputs o using (generation_id) join jobs a on a.job_id = o.job_id
         where i.job_id = j.job_id and i.role = 'feeds' and a.runtime = 'dispatcher' and a.operator = any($3::text[])
           and a.definition->'config'->>'each' is null) as batched
from datasets ds join orgs o using (org_id)
join job_outputs x on x.generation_id = ds.current_generation_id
join jobs j on j.job_id = x.job_id and j.routed and not j.building
where o.slug = $1 and ds.dataset_id = $2
order by j.job_id limit 1

-- name: overview
-- Deployed DAGs with their jobs.
select d.name as dag, v.number as version, j.name as job, j.runtime, j.operator, j.activation,
       j.source_kind, j.max_concurrency, h.level as hold_level, case when not s.paused then c.next_tick end as next_tick,
       c.last_tick, c.source->>'time_zone' as time_zone, s.paused
from dags d join orgs o using (org_id) join dag_versions v on v.dag_version_id = d.active_version_id
join dag_version_jobs vj using (dag_version_id) join jobs j on j.job_id = vj.job_id
left join job_holds h on h.job_id = j.job_id left join cron_schedules c on c.job_id = j.job_id
cross join lateral (
  select exists (select 1 from job_pauses p where p.dag_id = d.dag_id and p.job = j.name) as paused) s
where o.slug = $1 order by d.name, j.job_id
