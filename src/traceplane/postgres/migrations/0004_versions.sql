-- Versions that are built beside the one that serves, and what their jobs have still to be told of the past.

alter table dag_versions
  add column state text not null default 'active' check (state in ('building', 'active', 'retired', 'aborted', 'collected')),
  add column manual_cutover boolean not null default false,
  add column activated_at timestamptz,
  add column retired_at timestamptz;
update dag_versions v set state = 'retired' from dags d where d.dag_id = v.dag_id and d.active_version_id <> v.dag_version_id;
update dag_versions set activated_at = created_at;
create unique index dag_versions_one_building on dag_versions (dag_id) where state = 'building';
create unique index dag_versions_one_active on dag_versions (dag_id) where state = 'active';

-- What a version says of a dataset; the dataset's own row says what the active version does.
alter table dag_version_datasets add column definition jsonb;
update dag_version_datasets v set definition = d.definition from datasets d where d.dataset_uuid = v.dataset_uuid;
alter table dag_version_datasets alter column definition set not null;

-- A job of a version that is being built receives events like any other, and serves nobody yet.
alter table jobs add column building boolean not null default false;
drop index jobs_one_routed_per_name;
create unique index jobs_one_serving_per_name on jobs (dag_id, name) where routed and not building;

-- The past of a generation, on its way to a job that did not receive its events: every live scope, in order
-- of where it starts.
create table replays (
  job_id uuid not null references jobs,
  generation_id uuid not null references generations,
  -- Also what the job was told before, since what it made of it is no longer right.
  everything boolean not null,
  told_through bigint,
  primary key (job_id, generation_id)
);

create index events_by_partition on events (generation_id, range_start, event_id) where partition_key is not null;
