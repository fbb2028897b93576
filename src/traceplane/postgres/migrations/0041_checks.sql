-- Checks of datasets: what outputs that were committed do not meet, and datasets that got no data for too long.

create table check_failures (
  failure_id bigint generated always as identity primary key,
  dataset_uuid uuid not null references datasets,
  generation_id uuid not null references generations on delete cascade,
  -- Of the check.
  name text not null,
  problem text not null,
  -- How many do not meet it, and some of them. Null: it is about freshness.
  rows bigint,
  sample jsonb not null default '[]',
  -- Whose output it is; history may be shorter for tasks.
  task_id uuid,
  partition_key text,
  range_start bigint,
  range_end bigint,
  -- Of freshness: data has come again, so the failure before is over.
  recovered boolean not null default false,
  at timestamptz not null default tp_now()
);
create index check_failures_of_generations on check_failures (generation_id);
create index check_failures_of_tasks on check_failures (task_id) where task_id is not null;
create index check_failures_of_freshness on check_failures (dataset_uuid, name, failure_id) where task_id is null;
create index check_failures_by_time on check_failures (at);

call belongs_to_org('{check_failures}', 'exists (select 1 from datasets p where p.dataset_uuid = THIS.dataset_uuid)');
grant usage on all sequences in schema traceplane to traceplane_org;

-- Checks change in place, so a version without any takes those of another away when it serves again.
update dag_version_jobs set in_place = in_place || '{"checks": {}}';

create index datasets_with_freshness on datasets (dataset_uuid) where definition->'checks' @> '[{"kind": "freshness"}]';

-- When a generation last got rows.
alter table generation_cursors add column filled_at timestamptz;
update generation_cursors k set filled_at = (
  select max(c.committed_at) from dataset_commits c where c.generation_id = k.generation_id and c.row_count > 0);
