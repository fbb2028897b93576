-- Jobs that somebody paused.

-- By name, so that a pause outlives the version in which the job was paused.
create table job_pauses (
  dag_id uuid not null references dags,
  job text not null,
  paused_by text not null,
  reason text not null default '',
  since timestamptz not null,
  primary key (dag_id, job)
);
