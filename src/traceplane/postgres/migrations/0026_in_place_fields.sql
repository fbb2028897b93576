-- The parts of a job's definition that a deploy changes in place stand beside the limits of the version's jobs, so that
-- they hold while the version serves: not before its cutover, and not after it was aborted or rolled back.

alter table dag_version_jobs add column in_place jsonb;

update dag_version_jobs v set in_place = coalesce((
  select jsonb_strip_nulls(jsonb_build_object('execution_strategy', said.value->'execution_strategy'))
    || jsonb_build_object('config', said.value->'config')
  from dag_versions w join jobs j on j.job_id = v.job_id, jsonb_array_elements(w.spec->'jobs') said
  where w.dag_version_id = v.dag_version_id and said.value->>'name' = j.name and said.value ? 'config' limit 1), '{}');

alter table dag_version_jobs alter column in_place set not null;

-- Jobs may have what a version said that is being built, was aborted or was rolled back.
update jobs j set definition = j.definition || v.in_place, revision = j.revision + 1
from dags d join dag_version_jobs v on v.dag_version_id = d.active_version_id
where v.job_id = j.job_id and j.definition is distinct from j.definition || v.in_place;
