-- The control plane: what is deployed, what happened, what is to be done, and who may do it.
--
-- Hot tables (events, tasks, task_inputs, outbox, dataset_commits) carry no foreign keys: their rows are
-- only ever written by set-based statements that join the rows they refer to, and a check per row costs
-- more than the write itself. Registry tables carry them all.

-- The one clock. Leases, retries and ages compare only with this; tests replace its body to jump in time.
create function tp_now() returns timestamptz language sql stable parallel safe as 'select now()';

-- Time-ordered ids keep the primary key's insertions at the right edge of its index.
do $$
begin
  if current_setting('server_version_num')::int >= 180000 then
    create function uuid7() returns uuid language sql volatile parallel safe as 'select uuidv7()';
  else
    create function uuid7() returns uuid language sql volatile parallel safe as $f$
      select encode(set_bit(set_bit(overlay(
        uuid_send(gen_random_uuid())
        placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
        from 1 for 6), 52, 1), 53, 1), 'hex')::uuid
    $f$;
  end if;
end $$;

create type event_kind as enum ('data', 'invalidation');
create type task_state as enum ('queued', 'dispatched', 'running', 'completed', 'dead', 'canceled');

-- Registry ------------------------------------------------------------------------------------------

create table orgs (
  org_id uuid primary key default uuid7(),
  slug text not null unique
);
insert into orgs (slug) values ('default');

create table dags (
  dag_id uuid primary key default uuid7(),
  org_id uuid not null references orgs,
  name text not null,
  active_version_id uuid,
  unique (org_id, name)
);

create table dag_versions (
  dag_version_id uuid primary key default uuid7(),
  dag_id uuid not null references dags,
  number int not null,
  spec jsonb not null,
  job_fingerprints jsonb not null,
  definition_fingerprints jsonb not null,
  created_at timestamptz not null default tp_now(),
  unique (dag_id, number)
);
alter table dags add foreign key (active_version_id) references dag_versions;

create table datasets (
  dataset_uuid uuid primary key default uuid7(),
  org_id uuid not null references orgs,
  dataset_id text not null,
  dag_id uuid not null references dags,
  definition jsonb not null,
  current_generation_id uuid,
  created_at timestamptz not null default tp_now(),
  unique (org_id, dataset_id)
);

-- One build of a dataset by one definition ("dataset_version" on the wire).
create table generations (
  generation_id uuid primary key default uuid7(),
  dataset_uuid uuid not null references datasets,
  fingerprint text not null,
  -- Where the rows are when not here: an aggregator's ranges are read from what it aggregates.
  data_generation_id uuid references generations,
  created_at timestamptz not null default tp_now()
);
alter table datasets add foreign key (current_generation_id) references generations;

-- The pointer set: which generation each dataset has in each version of its DAG.
create table dag_version_datasets (
  dag_version_id uuid not null references dag_versions,
  dataset_uuid uuid not null references datasets,
  generation_id uuid not null references generations,
  primary key (dag_version_id, dataset_uuid)
);

-- A job's materializing definition never changes under one job_id; its execution settings do.
create table jobs (
  job_id uuid primary key default uuid7(),
  dag_id uuid not null references dags,
  name text not null,
  fingerprint text not null,
  activation text not null check (activation in ('source', 'reactive')),
  source_kind text check (source_kind in ('manual', 'cron', 'webhook', 'always_on')),
  runtime text not null,
  operator text not null,
  definition jsonb not null,
  routed boolean not null,
  priority smallint not null default 0,
  max_concurrency int check (max_concurrency > 0),
  dispatch_window int not null,
  max_queue_depth int check (max_queue_depth > 0),
  max_queue_age interval,
  timeout interval not null,
  lease interval not null,
  max_attempts int not null check (max_attempts > 0),
  retry_base interval not null,
  retry_max interval not null,
  revision int not null default 1,
  created_at timestamptz not null default tp_now(),
  check ((activation = 'source') = (source_kind is not null))
);
create unique index jobs_one_routed_per_name on jobs (dag_id, name) where routed;

create table job_inputs (
  job_id uuid not null references jobs,
  input_index int not null,
  name text not null,
  dataset_uuid uuid not null references datasets,
  generation_id uuid not null references generations,
  filter jsonb not null default '{}',
  primary key (job_id, input_index)
);
create index job_inputs_by_generation on job_inputs (generation_id);

create table job_outputs (
  job_id uuid not null references jobs,
  output_index int not null,
  name text not null,
  dataset_uuid uuid not null references datasets,
  generation_id uuid not null references generations,
  primary key (job_id, output_index)
);
create index job_outputs_by_generation on job_outputs (generation_id);

create table dag_version_jobs (
  dag_version_id uuid not null references dag_versions,
  job_id uuid not null references jobs,
  primary key (dag_version_id, job_id)
);

-- Events --------------------------------------------------------------------------------------------

-- A scope is a cursor (partition_key null, range_start = range_end) or a named range.
create table events (
  event_id bigint generated always as identity primary key,
  producer_id uuid not null,
  dataset_uuid uuid not null,
  generation_id uuid not null,
  kind event_kind not null,
  partition_key text,
  range_start bigint not null,
  range_end bigint not null,
  scope_key text not null generated always as (coalesce('p:' || partition_key, 'c:' || range_start::text)) stored,
  emission text not null default '',
  backfill boolean not null default false,
  traceparent text,
  created_at timestamptz not null,
  check (range_start <= range_end),
  check (partition_key is not null or range_start = range_end)
);
-- At-least-once delivery, exactly-once acceptance. `emission` tells a source's second word on a scope
-- (the same block height on another fork) from a repetition of its first.
create unique index events_accepted_once on events (producer_id, generation_id, scope_key, kind, emission);

-- Tasks ---------------------------------------------------------------------------------------------

create table tasks (
  task_id uuid primary key,
  job_id uuid not null,
  dedupe_key text,
  state task_state not null,
  -- What the indexes are cut by: 0 waiting, 1 in flight, 2 done, 3 dead. A claim and a heartbeat stay within
  -- "in flight", change no indexed column, and so cost no index entry (HOT).
  stage smallint not null generated always as (
    case when state = 'queued' then 0 when state in ('dispatched', 'running') then 1 when state = 'dead' then 3 else 2 end
  ) stored,
  priority smallint not null,
  kind event_kind not null,
  partition_key text,
  range_start bigint,
  range_end bigint,
  scope_key text generated always as (coalesce('p:' || partition_key, 'c:' || range_start::text)) stored,
  attempt int not null default 0,
  reported_attempt int not null default 0,
  granted_attempts int not null default 0,
  lease_token uuid,
  lease_expires_at timestamptz,
  worker_id text,
  cancel_requested boolean not null default false,
  resends int not null default 0,
  created_at timestamptz not null,
  ready_at timestamptz not null,
  dispatched_at timestamptz,
  started_at timestamptz,
  finished_at timestamptz,
  traceparent text,
  progress jsonb,
  error jsonb,
  check (state <> 'running' or (lease_token is not null and lease_expires_at is not null)),
  check (state not in ('completed', 'dead', 'canceled') or finished_at is not null),
  check (reported_attempt <= attempt)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);
-- Tasks that no event made (source runs, work asked for by hand) are created once by name.
create unique index tasks_created_once on tasks (job_id, dedupe_key) where dedupe_key is not null;
-- What the valve looks through, in the order it lets tasks pass; those not due yet lie behind those that are.
create index tasks_waiting on tasks (job_id, priority, ready_at, task_id) where stage = 0;
-- One scope of one job is out once. Concurrency is counted from here and stored nowhere, so no slot can leak.
create unique index tasks_in_flight on tasks (job_id, scope_key) where stage = 1;
create index tasks_dead on tasks (job_id, task_id) where stage = 3;

-- Lineage: which event fed which task, the one record of inputs; and what makes task creation idempotent,
-- since an event feeds a job once.
create table task_inputs (
  event_id bigint not null,
  job_id uuid not null,
  task_id uuid not null,
  primary key (event_id, job_id)
);
-- Task ids grow with time, and so does this table: a block range index finds them at almost no cost.
create index task_inputs_by_task on task_inputs using brin (task_id) with (autosummarize = on);

-- Side effects outside this database, written with their cause and relayed at least once.
create table outbox (
  outbox_id bigint generated always as identity primary key,
  runtime text not null,
  task_ids uuid[] not null,
  failures int not null default 0,
  created_at timestamptz not null default tp_now(),
  ready_at timestamptz not null default tp_now()
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- The local wake-up queue. Unlogged: a wake-up is a hint, and the reconciler sends lost ones again.
-- Hidden messages are skipped by reading past them, so that hiding one changes no indexed column.
create unlogged table wake_messages (
  queue text not null,
  message_id bigint generated always as identity,
  task_id uuid not null,
  receives int not null default 0,
  visible_at timestamptz not null,
  primary key (queue, message_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, fillfactor = 50,
        autovacuum_vacuum_cost_delay = 0);

create table wake_dead_letters (
  message_id bigint primary key,
  queue text not null,
  task_id uuid not null,
  receives int not null,
  buried_at timestamptz not null default tp_now()
);

-- What tasks produced --------------------------------------------------------------------------------

create table dataset_commits (
  commit_id bigint generated always as identity primary key,
  task_id uuid not null,
  output_index int not null,
  generation_id uuid not null,
  partition_key text,
  range_start bigint not null,
  range_end bigint not null,
  scope_key text not null generated always as (coalesce('p:' || partition_key, 'c:' || range_start::text)) stored,
  files jsonb not null,
  row_count bigint not null,
  bytes bigint not null,
  schema_hash text not null,
  committed_at timestamptz not null
);
create unique index dataset_commits_once on dataset_commits (task_id, output_index, scope_key);
create index dataset_commits_by_scope on dataset_commits (generation_id, range_start, commit_id);

create table generation_cursors (
  generation_id uuid primary key,
  position bigint not null,
  -- The length of its longest commit: what overlaps a range starts no further before it than this.
  widest bigint not null,
  updated_at timestamptz not null
);

create table aggregator_positions (
  job_id uuid not null,
  position bigint not null,
  primary key (job_id, position)
);

-- Backpressure --------------------------------------------------------------------------------------

-- Jobs over a threshold, and since when; hysteresis needs the memory.
create table job_pressure (
  job_id uuid primary key references jobs,
  level smallint not null check (level in (1, 2)),
  metric text not null check (metric in ('queue_depth', 'queue_age_seconds')),
  figure double precision not null,
  threshold double precision not null,
  since timestamptz not null
);

-- Producers whose dispatch is held: level 1 holds backfill, level 2 holds everything.
create table job_holds (
  job_id uuid primary key references jobs,
  level smallint not null check (level in (1, 2)),
  caused_by uuid not null references jobs,
  path text[] not null,
  since timestamptz not null
);

-- Who may call --------------------------------------------------------------------------------------

create table signing_keys (
  kid text primary key,
  sealed_private_key bytea not null,
  public_jwk jsonb not null,
  created_at timestamptz not null,
  activates_at timestamptz not null,
  retires_at timestamptz
);

create table access_tokens (
  token_hash text primary key,
  principal text not null check (principal in ('worker', 'user')),
  org text not null references orgs (slug),
  name text not null,
  role text check (role in ('admin', 'writer', 'reader')),
  created_at timestamptz not null default tp_now(),
  expires_at timestamptz,
  revoked_at timestamptz,
  check ((principal = 'user') = (role is not null))
);
