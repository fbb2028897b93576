-- Rights on datasets, and personal data that follows the data. Roles, marks and declassifications are part of the
-- definitions of datasets, so they belong to the version that serves.

-- The lineage that a job declares is among its fields that change in place: a version without one ends it.
update dag_version_jobs set in_place = in_place || '{"lineage": null}';

-- What jobs read before the datasets of other DAGs moved to new generations. Rows that were computed from it may still
-- be there, so columns stay personal data as long as an earlier generation can serve again.
create table past_job_inputs (
  job_id uuid not null references jobs,
  name text not null,
  generation_id uuid not null references generations,
  columns jsonb not null,
  -- How the job's virtual inputs were computed then.
  virtual jsonb
);
create unique index past_job_inputs_once on past_job_inputs (job_id, name, generation_id, md5(coalesce(virtual::text, '')));

-- Few datasets have roles: a call asks for these alone.
create index datasets_with_roles on datasets (org_id)
  where definition->>'read_roles' is not null or definition->>'write_roles' is not null;

call belongs_to_org('{past_job_inputs}', 'exists (select 1 from jobs p where p.job_id = THIS.job_id)');

-- A deploy renews the code that is stored already, so that it is not deleted as unused.
grant update (created_at) on code_bundles to traceplane_org;
