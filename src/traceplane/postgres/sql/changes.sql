-- What tells whether something of an organization changed, at little cost: nothing here counts what waits or is done.

-- name: prints
-- A print of each thing, which is another one when the thing changed: of jobs by their tasks in flight, by the tasks that
-- were created in the last seconds, and by what holds them; of datasets by their newest commit; of DAGs by their versions.
with flying as (
  select t.job_id, count(*) || ':' || sum(hashtextextended(t.task_id::text || t.state || t.attempt || coalesce(t.progress::text, ''), 0)) as print
  from tasks t where t.stage = 1 group by t.job_id
), created as (
  select t.job_id, max(t.task_id::text) as print from tasks t
  where t.task_id > (lpad(to_hex((extract(epoch from tp_now()) * 1000)::bigint - 20000), 12, '0') || repeat('0', 20))::uuid
  group by t.job_id
), serving as (
  select d.name as dag, j.name as job, j.job_id, d.dag_id
  from orgs o join dags d using (org_id) join jobs j using (dag_id) where o.slug = $1 and j.routed
)
select 'tasks' as kind, s.dag as first, s.job as second, max(f.print) as print from serving s join flying f using (job_id) group by s.dag, s.job
union all
select 'created', s.dag, s.job, max(c.print) from serving s join created c using (job_id) group by s.dag, s.job
union all
select 'held', s.dag, s.job, max(h.level) || ' ' || max(h.caused_by::text) from serving s join job_holds h using (job_id) group by s.dag, s.job
union all
select 'paused', d.name, p.job, p.since::text
from orgs o join dags d using (org_id) join job_pauses p using (dag_id) where o.slug = $1
union all
select 'rows', x.dataset_id, '', k.xmin::text || k.ctid::text
from orgs o join datasets x using (org_id) join generation_cursors k on k.generation_id = x.current_generation_id where o.slug = $1
union all
select 'versions', s.dag, s.job, v.print
from serving s join (
  select d.dag_id, coalesce(d.active_version_id::text, '') || string_agg(v.number || v.state, ' ' order by v.number) as print
  from orgs o join dags d using (org_id) join dag_versions v using (dag_id)
  where o.slug = $1 and v.state in ('building', 'active') group by d.dag_id, d.active_version_id
) v using (dag_id) group by s.dag, s.job, v.print
union all
select 'letters', '', '', coalesce(max(b.report_id), 0) || ':' || count(*)
from (select b.report_id from buffered_reports b where b.failed_at is not null limit 10000) b
union all
select 'alerts', '', '', coalesce((select a.alert_event_id::text from alert_events a join orgs o using (org_id)
  where o.slug = $1 order by a.alert_event_id desc limit 1), '')
