-- Jobs that keep their data get batches, lose them, or have them cut by another rule.

-- Positions that an aggregator leaves as they came, event by event: the job behind it had them before it had batches, or
-- since it has none any more.
create table passed_positions (
  job_id uuid not null,
  bucket bigint not null,
  positions int8multirange not null,
  primary key (job_id, bucket)
) with (fillfactor = 50);

-- Aggregators that were put in front of a job that had received all events of a generation up to this one. They never
-- receive those.
create table aggregators_added (
  job_id uuid primary key,
  generation_id uuid not null,
  event_id bigint not null
);

call belongs_to_org('{passed_positions, aggregators_added}', 'exists (select 1 from jobs p where p.job_id = THIS.job_id)');

-- A deploy that removes batches closes those that are filling.
alter table known_scopes drop constraint known_scopes_closed_by_check;
alter table known_scopes add constraint known_scopes_closed_by_check
  check (closed_by in ('full', 'every', 'all', 'max_wait', 'hand', 'deploy'));
