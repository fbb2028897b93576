-- What is deployed as one graph, and what is going on in it.

-- name: jobs
-- The jobs that serve or, with $3, those of the versions that are being built, with what they read and write, and what
-- holds them. With $4, only those that something holds or somebody paused.
with serving as materialized (
  select d.dag_id, d.name as dag, v.number as version, m.job_id
  from dags d join orgs o using (org_id) join dag_versions v on v.dag_version_id = case when $3::boolean
    then (select b.dag_version_id from dag_versions b where b.dag_id = d.dag_id and b.state = 'building')
    else d.active_version_id end
  join dag_version_jobs m using (dag_version_id)
  where o.slug = $1 and ($2::text is null or d.name = $2) and (not $4::boolean
    or exists (select 1 from job_holds h where h.job_id = m.job_id)
    or exists (select 1 from job_pauses z join jobs j on j.name = z.job where z.dag_id = d.dag_id and j.job_id = m.job_id))
), reading as (
  select i.job_id, jsonb_agg(jsonb_build_object('dataset', x.dataset_id, 'role', i.role) order by i.input_index) as reads
  from serving s join job_inputs i using (job_id) join datasets x using (dataset_uuid) group by i.job_id
), writing as (
  select o.job_id, array_agg(x.dataset_id order by o.output_index) as writes
  from serving s join job_outputs o using (job_id) join datasets x using (dataset_uuid) group by o.job_id
)
select s.dag, s.version, j.name as job, j.runtime, j.operator, j.activation, j.source_kind,
       j.max_concurrency, j.max_queue_depth, extract(epoch from j.max_queue_age)::float8 as max_queue_age_seconds,
       j.definition->>'generated_for' as generated_for,
       coalesce(r.reads, '[]') as reads, coalesce(w.writes, '{}') as writes,
       case when j.definition ? 'virtual'
         then jsonb_path_query_array(j.definition, '$.virtual.inputs[*].dataset_id') else '[]' end as declared_reads,
       h.level as hold_level, hd.name as hold_dag, hj.name as hold_job, p.metric as hold_metric, p.figure as hold_figure,
       p.threshold as hold_threshold, z.paused_by, z.reason as pause_reason
from serving s join jobs j using (job_id)
left join reading r using (job_id) left join writing w using (job_id)
left join job_holds h on h.job_id = j.job_id left join jobs hj on hj.job_id = h.caused_by
left join dags hd on hd.dag_id = hj.dag_id left join job_pressure p on p.job_id = h.caused_by
left join job_pauses z on z.dag_id = s.dag_id and z.job = j.name
order by s.dag, j.job_id

-- name: used
-- The datasets that the serving jobs of a DAG write or read.
with serving as materialized (
  select m.job_id from dags d join orgs o using (org_id) join dag_version_jobs m on m.dag_version_id = d.active_version_id
  where o.slug = $1 and d.name = $2
)
select x.dataset_id from serving s join job_outputs u using (job_id) join datasets x using (dataset_uuid)
union
select x.dataset_id from serving s join job_inputs u using (job_id) join datasets x using (dataset_uuid)

-- name: changes
-- What each job of a version that is being built is to the one of its name that serves; those that are the same are left
-- out.
select d.name as dag, j.name as job, case when s.job_id is null then 'added'
    when exists (select 1 from job_outputs a join job_outputs b using (generation_id)
                 where a.job_id = s.job_id and b.job_id = j.job_id) then 'in_place' else 'rebuilt' end as change
from dags d join orgs o using (org_id) join dag_versions v on v.dag_id = d.dag_id and v.state = 'building'
join dag_version_jobs m on m.dag_version_id = v.dag_version_id join jobs j on j.job_id = m.job_id
left join lateral (
  select x.job_id from dag_version_jobs n join jobs x using (job_id)
  where n.dag_version_id = d.active_version_id and x.name = j.name
) s on true
where o.slug = $1 and ($2::text is null or d.name = $2) and s.job_id is distinct from j.job_id

-- name: dags
-- The DAGs that serve, with the number of their jobs but those of $2, their datasets, and the datasets of others that
-- they read.
with deployed as materialized (
  select d.org_id, d.dag_id, d.name as dag, v.number as version, v.dag_version_id
  from dags d join orgs o using (org_id) join dag_versions v on v.dag_version_id = d.active_version_id where o.slug = $1
), serving as materialized (
  select p.org_id, p.dag_id, m.job_id from deployed p join dag_version_jobs m using (dag_version_id)
), reading as (
  select dag_id, array_agg(distinct dataset_id) as reads from (
    select s.dag_id, x.dag_id as owner, x.dataset_id
    from serving s join job_inputs i using (job_id) join datasets x using (dataset_uuid)
    union all
    select s.dag_id, x.dag_id, x.dataset_id
    from serving s join jobs j on j.job_id = s.job_id and j.definition ? 'virtual'
    cross join lateral jsonb_path_query(j.definition, '$.virtual.inputs[*].dataset_id') v
    join datasets x on x.org_id = s.org_id and x.dataset_id = v #>> '{}') r
  where owner <> dag_id group by dag_id
), working as (
  select dag_id, count(*) as jobs from serving where job_id <> all($2::uuid[]) group by dag_id
), written as (
  select x.dag_id, array_agg(x.dataset_id order by x.dataset_id) as datasets,
         array_agg(x.definition->>'sql') filter (where x.definition->>'storage' = 'virtual') as virtual
  from datasets x join deployed p using (dag_id) where x.current_generation_id is not null group by x.dag_id
)
select p.dag, p.version, coalesce(n.jobs, 0) as jobs, coalesce(w.datasets, '{}') as datasets,
       coalesce(r.reads, '{}') as reads,
       coalesce(w.virtual, '{}') as virtual
from deployed p left join working n using (dag_id) left join reading r using (dag_id) left join written w using (dag_id)
order by p.dag

-- name: datasets
-- The datasets that serve.
select x.dataset_id, d.name as dag, coalesce(x.definition->>'storage', 'parquet') as storage, x.definition->>'sql' as sql
from datasets x join orgs o using (org_id) join dags d using (dag_id)
where o.slug = $1 and x.current_generation_id is not null
order by x.dataset_id
