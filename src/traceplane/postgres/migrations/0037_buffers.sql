-- Buffered datasets: completed attempts whose rows a sink has not written yet, and those that it could not write.

-- What a running attempt has published of its outputs; it counts when the attempt completes.
create table buffered_batches (
  task_id uuid not null references tasks on delete cascade,
  attempt int not null,
  batch int not null,
  output jsonb not null,
  primary key (task_id, attempt, batch)
);

-- The completion of an attempt, in the order in which sinks apply them. The task stays `running`, with a lease that does
-- not expire, until a sink has committed it: nothing else in the platform has to know of buffers.
create table buffered_reports (
  report_id bigint generated always as identity primary key,
  task_id uuid not null unique references tasks on delete cascade,
  attempt int not null,
  lease_token uuid not null,
  -- Whose sink applies it: the first of the task's buffered outputs.
  generation_id uuid not null references generations,
  report jsonb not null,
  created_at timestamptz not null default tp_now(),
  ready_at timestamptz not null default tp_now(),
  tries int not null default 0,
  -- Of a dead letter: why it could not be written.
  failure jsonb,
  failed_at timestamptz
);
create index buffered_reports_waiting on buffered_reports (generation_id, report_id) where failed_at is null;
create index buffered_reports_dead on buffered_reports (generation_id, report_id) where failed_at is not null;

-- One sink at a time works on a dataset.
create table sink_leases (
  generation_id uuid primary key references generations on delete cascade,
  holder uuid not null,
  expires_at timestamptz not null
);

call belongs_to_org('{buffered_batches, buffered_reports}', 'exists (select 1 from tasks p where p.task_id = THIS.task_id)');
call belongs_to_org('{sink_leases}', 'exists (select 1 from generations p where p.generation_id = THIS.generation_id)');
grant usage on all sequences in schema traceplane to traceplane_org;

-- Columns of which no two rows have the same values, if the dataset names some; and indexes for its readers.
alter table hot_tables add column key text[] not null default '{}';

drop procedure create_hot_table(uuid, text, text, text);
create procedure create_hot_table(generation uuid, columns text, index_columns text, unique_columns text, indexes text[])
language plpgsql security definer set search_path = traceplane as $$
declare
  hot text := format('traceplane_hot.%I', 'g_' || replace(generation::text, '-', ''));
  one text;
begin
  execute format('create table %s (%s)', hot, columns);
  execute format('create index on %s (%s)', hot, index_columns);
  if unique_columns <> '' then
    execute format('create unique index on %s (%s)', hot, unique_columns);
  end if;
  foreach one in array indexes loop
    execute format('create index on %s (%s)', hot, one);
  end loop;
  call hot_table_belongs_to_org(generation);
end $$;
