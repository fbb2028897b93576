-- Which datasets have roles, and which jobs they concern.

-- name: datasets
-- Datasets with roles of their own, or of the datasets whose rows they show or whose readers they have, or all of them
-- ($2); with the jobs that they decide about and those that read them. A job that writes nothing, such as the route of an
-- alert, goes by what it reads. Readers of a dataset that is gone are unknown, so only admins are left.
with owned as materialized (
  select d.dataset_uuid, w.dataset_id, w.definition->'read_roles' as read_roles
  from orgs o join datasets d using (org_id) join generations t on t.generation_id = d.current_generation_id
  join generations r on r.generation_id = t.data_generation_id join datasets w on w.dataset_uuid = r.dataset_uuid
  where o.slug = $1 and t.data_generation_id is not null
), found as materialized (
  select d.dataset_uuid, d.definition->>'readers_of' as source, s.dataset_uuid as source_uuid,
    case when s.dataset_uuid is null then '[]' else s.definition->'read_roles' end as read_roles
  from orgs o join datasets d using (org_id)
  left join datasets s on s.org_id = d.org_id and s.dataset_id = d.definition->>'readers_of'
  where o.slug = $1 and d.definition->>'readers_of' is not null
), owners as materialized (
  select dataset_uuid, jsonb_agg(jsonb_build_array(dataset_id, read_roles)) as owners
  from (select dataset_uuid, dataset_id, read_roles from owned
        union all select dataset_uuid, source, read_roles from found
        union all select f.dataset_uuid, w.dataset_id, w.read_roles from found f join owned w on w.dataset_uuid = f.source_uuid) x
  where $2::bool or read_roles <> 'null' group by dataset_uuid
)
select d.dataset_id, g.name as dag, d.definition->'read_roles' as read_roles, d.definition->'write_roles' as write_roles,
  coalesce(w.owners, '[]') as owners,
  coalesce((select jsonb_agg(distinct jsonb_build_object('job_id', j.job_id, 'dag', k.name, 'job', j.name))
    from (select x.job_id from job_outputs x where x.dataset_uuid = d.dataset_uuid
          union all select i.job_id from job_inputs i where i.dataset_uuid = d.dataset_uuid
            and not exists (select 1 from job_outputs x where x.job_id = i.job_id)) x
    join jobs j using (job_id) join dags k using (dag_id)), '[]') as writers,
  coalesce((select jsonb_agg(distinct jsonb_build_object('job_id', j.job_id, 'dag', k.name, 'job', j.name))
    from job_inputs x join jobs j using (job_id) join dags k using (dag_id) where x.dataset_uuid = d.dataset_uuid), '[]') as readers
from datasets d join orgs o using (org_id) join dags g using (dag_id)
left join owners w on w.dataset_uuid = d.dataset_uuid
where o.slug = $1 and ($2::bool or d.definition->>'read_roles' is not null or d.definition->>'write_roles' is not null
  or w.owners is not null)
