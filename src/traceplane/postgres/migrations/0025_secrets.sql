-- Secrets: values that jobs receive when they start, and that nobody can read back.

create table secrets (
  secret_id uuid primary key default uuid7(),
  org_id uuid not null references orgs,
  namespace text not null check (namespace in ('platform', 'user')),
  name text not null,
  -- Of jobs, as dag/job or dag/*; null: every job of the organization whose code may use the namespace.
  allowed_jobs text[],
  newest int not null default 1,
  created_at timestamptz not null,
  -- To the minute: a claim must not write for each task.
  last_used_at timestamptz,
  unique (org_id, namespace, name)
);

-- A version is sealed with a key of its own, and that key with the master key: another master key means sealing the
-- small keys anew, not the values.
create table secret_versions (
  secret_id uuid not null references secrets on delete cascade,
  version int not null,
  sealed_value bytea not null,
  sealed_key bytea not null,
  master_key_id text not null,
  set_by text not null,
  set_at timestamptz not null,
  primary key (secret_id, version)
);
create index secret_versions_by_master_key on secret_versions (master_key_id, secret_id, version);

-- The secrets that a job receives, by the names that its code knows them by.
alter table jobs add column secrets jsonb;
alter table dag_version_jobs add column secrets jsonb;
