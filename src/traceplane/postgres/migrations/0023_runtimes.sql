-- The function that a job of an `invoke` runtime calls; null: the one that its runtime names.
alter table jobs add column function text;
alter table dag_version_jobs add column function text;

-- What a job needs of the worker that runs its tasks; null: nothing that another worker of its runtime may lack.
alter table jobs add column requires jsonb;
alter table dag_version_jobs add column requires jsonb;

-- Tasks with the same needs have a wake queue of their own: a worker is woken only for what it can run.
alter table jobs add column queue_suffix text not null
  generated always as (coalesce('-' || left(md5(requires::text), 12), '')) stored;
alter table outbox add column queue_suffix text not null default '';
create index jobs_requiring on jobs (runtime) where requires is not null;

-- Workers that ask for tasks, and what each offers. Unlogged: they tell it again.
create unlogged table workers (
  worker_id text primary key,
  runtime text not null,
  offers jsonb not null,
  seen_at timestamptz not null
);
