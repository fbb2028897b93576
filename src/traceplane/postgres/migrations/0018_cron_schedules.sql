-- Cron sources that fire.

-- What a version says of a cron source, as model.dag.Source; beside the limits of its jobs, so that moving to the version
-- takes nothing but what the database holds.
alter table dag_version_jobs add column source jsonb;

-- The cron sources that serve, and how far each has come: all ticks up to settled_through have fired or were skipped.
create table cron_schedules (
  job_id uuid primary key references jobs,
  dag_id uuid not null references dags,
  source jsonb not null,
  settled_through timestamptz not null,
  next_tick timestamptz,
  -- The last one that fired.
  last_tick timestamptz,
  -- When a dispatcher looks at it again: at the next tick, plus the source's own delay. Null: it has no further ticks.
  due_at timestamptz
) with (fillfactor = 70);
create index cron_schedules_due on cron_schedules (due_at);
create index cron_schedules_by_dag on cron_schedules (dag_id);
