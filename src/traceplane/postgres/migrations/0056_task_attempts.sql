-- How attempts ended that did not complete: when, where, and with which error code. The last attempt of a task is in its
-- row; a task that completed at once has no row here.
create table task_attempts (
  task_id uuid not null,
  attempt int not null,
  worker_id text,
  started_at timestamptz not null,
  ended_at timestamptz not null,
  outcome text not null check (outcome in ('failed', 'lost', 'returned', 'canceled')),
  code text,
  primary key (task_id, attempt)
);
call belongs_to_org('{task_attempts}', 'exists (select 1 from tasks p where p.task_id = THIS.task_id)');
