-- The code that jobs run, as it was deployed: kept once per content, named by a job's definition.
create table code_bundles (
  bundle_hash text primary key check (bundle_hash ~ '^[0-9a-f]{64}$'),
  content text not null,
  created_at timestamptz not null default tp_now()
);
