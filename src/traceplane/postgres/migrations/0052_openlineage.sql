-- What a receiver of OpenLineage events has been told. Runs are tasks, and what happened to them is read from there: no
-- statement that creates, claims or completes a task writes anything for this.

-- How far the tasks are known, and who tells of them: one dispatcher at a time.
create table openlineage_progress (
  only_row boolean primary key default true check (only_row),
  -- Tasks with lower ids are in `openlineage_runs`, or were.
  followed_to uuid not null,
  holder uuid,
  expires_at timestamptz not null default tp_now()
);

-- Tasks of which something is to be told yet. One that is dead or canceled may be run again.
create table openlineage_runs (
  task_id uuid primary key,
  -- How many of its runs have ended, and when the last one did.
  ended_runs int not null default 0,
  ended_at timestamptz,
  -- Whether the beginning of the next run was told.
  started boolean not null default false
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);
