-- Where rows come from, for the marks of personal data that follow them.

-- name: of_jobs
-- The generations that jobs read and write, with the columns that they read ([]: all), and whether a virtual dataset
-- that they read has marks of its own; nothing if the organization has no marks at all.
select k.name as dag, j.name as job, r.generation_id, r.columns, exists (
    select 1 from datasets w where j.definition ? 'virtual' and w.org_id = k.org_id
      and j.definition->'virtual'->'datasets' ? w.dataset_id and w.definition->'columns' @> '[{"pii": true}]') as reads_marked
from unnest($2::text[], $3::text[]) a (dag, job) join orgs o on o.slug = $1
join dags k on k.org_id = o.org_id and k.name = a.dag join jobs j on j.dag_id = k.dag_id and j.name = a.job
cross join lateral (
  select coalesce(g.data_generation_id, g.generation_id) as generation_id, i.columns
  from job_inputs i join generations g using (generation_id) where i.job_id = j.job_id and i.role <> 'triggers'
  union all
  select p.generation_id, p.columns from past_job_inputs p where p.job_id = j.job_id
  union all
  select coalesce(g.data_generation_id, g.generation_id), '[]' from job_outputs x join generations g using (generation_id)
  where x.job_id = j.job_id
) r
where exists (select 1 from datasets d where d.org_id = o.org_id and d.definition->'columns' @> '[{"pii": true}]')
  or exists (select 1 from dag_versions v join dags n using (dag_id) join dag_version_datasets m using (dag_version_id)
    where n.org_id = o.org_id and v.activated_at is not null and m.definition->'columns' @> '[{"pii": true}]')

-- name: upstream
-- Generations, and all that their rows were computed from: the columns that their datasets declare now and in the
-- version that serves or last served them, those that their files have, and the jobs that write them.
with recursive up (generation_id) as (
  select unnest($1::uuid[])
  union
  select r.generation_id from up join job_outputs x on x.generation_id = up.generation_id
  cross join lateral (
    select coalesce(g.data_generation_id, g.generation_id) as generation_id
    from job_inputs i join generations g on g.generation_id = i.generation_id
    where i.job_id = x.job_id and i.role <> 'triggers'
    union all
    select p.generation_id from past_job_inputs p where p.job_id = x.job_id and exists (
      select 1 from dag_version_datasets m join dag_versions v using (dag_version_id)
      where m.generation_id = p.generation_id and v.state in ('active', 'retired'))
  ) r
)
select up.generation_id, d.dataset_id, d.definition->'columns' as declared, s.columns,
  (select m.definition->'columns' from dag_version_datasets m join dag_versions v using (dag_version_id)
   where m.generation_id = up.generation_id and v.activated_at is not null order by v.state = 'active' desc, v.activated_at desc limit 1) as served,
  coalesce((select jsonb_agg(jsonb_build_object('job_id', j.job_id, 'operator', j.operator, 'definition', j.definition,
      'output', x.name, 'outputs', (select count(*) from job_outputs o where o.job_id = j.job_id),
      'inputs', (
        select coalesce(jsonb_agg(jsonb_build_object('name', i.name, 'columns', i.columns,
          'generation_id', coalesce(h.data_generation_id, h.generation_id))), '[]')
        from job_inputs i join generations h on h.generation_id = i.generation_id
        where i.job_id = j.job_id and i.role <> 'triggers'),
      'past', (
        select coalesce(jsonb_agg(jsonb_build_object('name', p.name, 'columns', p.columns,
          'generation_id', p.generation_id, 'virtual', p.virtual)), '[]')
        from past_job_inputs p where p.job_id = j.job_id and p.generation_id in (select generation_id from up)),
      'virtual_columns', (
        select coalesce(jsonb_object_agg(w.dataset_id, w.definition->'columns'), '{}') from datasets w
        where j.definition ? 'virtual' and w.org_id = d.org_id
          and j.definition->'virtual'->'datasets' ? w.dataset_id)))
    from job_outputs x join jobs j using (job_id) where x.generation_id = up.generation_id), '[]') as producers
from up join generations g on g.generation_id = up.generation_id join datasets d using (dataset_uuid)
left join generation_schemas s on s.generation_id = up.generation_id
