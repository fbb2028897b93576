-- The trigger: whose pipelines run on which signals, what was launched, and how far each partition is consumed.

-- A list of tickers that several pipelines share.
create table scanner_lists (
  scanner_list_id uuid primary key default uuid7(),
  org_id uuid not null references orgs,
  name text not null,
  tickers text[] not null,
  changed_in xid8 not null default pg_current_xact_id(),
  unique (org_id, name)
);
create index scanner_lists_by_change on scanner_lists (changed_in);

create table pipelines (
  pipeline_id uuid primary key default uuid7(),
  org_id uuid not null references orgs,
  user_id text not null,
  name text not null,
  trigger_mode text not null check (trigger_mode in ('signal', 'periodic')),
  scanner_tickers text[],
  scanner_list_id uuid references scanner_lists,
  -- [{signal_type, min_confidence, direction}]; none: every signal of its tickers.
  signal_subscriptions jsonb not null default '[]',
  -- market_hours, signals_within: what else must hold before a match launches.
  rules jsonb not null default '{}',
  -- A cron expression in UTC.
  schedule text,
  is_active boolean not null default true,
  config jsonb not null,
  launches_per_hour int check (launches_per_hour > 0),
  created_at timestamptz not null default tp_now(),
  deleted_at timestamptz,
  -- The transaction that wrote it last. Readers ask for what was written since the oldest transaction that was
  -- open when they read before: numbers of a sequence become visible out of order, these cannot be passed by.
  changed_in xid8 not null default pg_current_xact_id(),
  check ((trigger_mode = 'periodic') = (schedule is not null)),
  check (trigger_mode = 'periodic' or (scanner_tickers is null) <> (scanner_list_id is null))
);
create unique index pipelines_one_of_a_name on pipelines (org_id, user_id, name) where deleted_at is null;
create index pipelines_by_change on pipelines (changed_in);
create index pipelines_by_list on pipelines (scanner_list_id) where scanner_list_id is not null;
create index pipelines_scheduled on pipelines (pipeline_id)
  where trigger_mode = 'periodic' and is_active and deleted_at is null;

create table trigger_user_limits (
  org_id uuid not null references orgs,
  user_id text not null,
  launches_per_hour int not null check (launches_per_hour > 0),
  -- What was left when launches were last counted; null: all.
  available double precision,
  counted_at timestamptz not null default tp_now(),
  primary key (org_id, user_id)
);

-- Whoever writes a row, by hand too, marks it as changed.
create function mark_as_changed() returns trigger language plpgsql as $$
begin
  new.changed_in := pg_current_xact_id();
  return new;
end $$;
create trigger pipelines_marked before update on pipelines for each row execute function mark_as_changed();
create trigger scanner_lists_marked before update on scanner_lists for each row execute function mark_as_changed();

-- Who keeps pipelines in memory hears of a change; the periodic refresh finds it in any case.
create function tell_of_pipelines() returns trigger language plpgsql as $$
begin
  perform pg_notify('traceplane_pipelines', '');
  return null;
end $$;
create trigger pipelines_changed after insert or update or delete on pipelines
  for each statement execute function tell_of_pipelines();
create trigger scanner_lists_changed after insert or update or delete on scanner_lists
  for each statement execute function tell_of_pipelines();

-- One run of a pipeline. Launched as a task of the platform, it has the task's id.
create table executions (
  execution_id uuid primary key default uuid7(),
  pipeline_id uuid not null,
  target text not null check (target in ('task', 'celery')),
  signal_id text,
  signal jsonb,
  scheduled_for timestamptz,
  status text not null default 'PENDING' check (status in ('PENDING', 'RUNNING', 'COMPLETED', 'FAILED')),
  error jsonb,
  created_at timestamptz not null,
  started_at timestamptz,
  finished_at timestamptz,
  check ((signal_id is null) <> (scheduled_for is null)),
  check ((status in ('COMPLETED', 'FAILED')) = (finished_at is not null))
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
-- A pipeline runs once at a time, whoever launches it.
create unique index executions_one_running on executions (pipeline_id) where status in ('PENDING', 'RUNNING');
create unique index executions_once_per_signal on executions (pipeline_id, signal_id) where signal_id is not null;
create unique index executions_once_per_time on executions (pipeline_id, scheduled_for) where scheduled_for is not null;
create index executions_by_time on executions (pipeline_id, created_at desc);

-- Messages for Celery's workers, written with their cause and relayed at least once.
create table celery_outbox (
  execution_id uuid primary key,
  failures int not null default 0,
  ready_at timestamptz not null default tp_now()
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- Where each partition goes on, moved in the transaction that launches what lies before. Whoever moves it names the
-- offset that it started from, so that a consumer whose partition was taken away can launch nothing.
create table trigger_offsets (
  consumer_group text not null,
  topic text not null,
  partition int not null,
  next_offset bigint not null,
  consumed_at timestamptz not null default tp_now(),
  primary key (consumer_group, topic, partition)
) with (fillfactor = 50);
