-- Which datasets have roles, and which jobs they concern.

-- name: datasets
-- Datasets with roles of their own, or of the dataset whose rows they show, or all of them ($2); with the jobs that write
-- them and those that read them.
with owned as materialized (
  select t.generation_id, w.dataset_id, w.definition->'read_roles' as read_roles
  from orgs o join datasets d using (org_id) join generations t on t.generation_id = d.current_generation_id
  join generations r on r.generation_id = t.data_generation_id join datasets w on w.dataset_uuid = r.dataset_uuid
  where o.slug = $1 and t.data_generation_id is not null
)
select d.dataset_id, g.name as dag, d.definition->'read_roles' as read_roles, d.definition->'write_roles' as write_roles,
  w.dataset_id as owner, w.read_roles as owner_roles,
  coalesce((select jsonb_agg(distinct jsonb_build_object('job_id', j.job_id, 'dag', k.name, 'job', j.name))
    from job_outputs x join jobs j using (job_id) join dags k using (dag_id) where x.dataset_uuid = d.dataset_uuid), '[]') as writers,
  coalesce((select jsonb_agg(distinct jsonb_build_object('job_id', j.job_id, 'dag', k.name, 'job', j.name))
    from job_inputs x join jobs j using (job_id) join dags k using (dag_id) where x.dataset_uuid = d.dataset_uuid), '[]') as readers
from datasets d join orgs o using (org_id) join dags g using (dag_id)
left join owned w on w.generation_id = d.current_generation_id
where o.slug = $1 and ($2::bool or d.definition->>'read_roles' is not null or d.definition->>'write_roles' is not null
  or w.read_roles <> 'null')
