-- Jobs that somebody paused.

-- By name, so that a pause outlives the version in which the job was paused.
create table job_pauses (
  dag_id uuid not null references dags,
  job text not null,
  paused_by text not null,
  reason text not null default '',
  since timestamptz not null,
  primary key (dag_id, job)
);

-- The batches that an aggregator has closed are scopes that it knows: why each was closed and when, and which positions
-- of it had arrived when it was last emitted.
alter table known_scopes
  add column closed_by text check (closed_by in ('full', 'every', 'all', 'max_wait', 'hand', 'before')),
  add column closed_at timestamptz,
  add column held int8multirange;

-- Batches that are filling and that something else than their last position closes: a time, or the end of the work on
-- the batch before. `slot` is the start of a range of a fixed size, otherwise 0; the lowest position stands for all that
-- has arrived, which somebody closes by hand.
create table open_batches (
  job_id uuid not null,
  slot bigint not null,
  opened_at timestamptz not null,
  due_at timestamptz,
  backfill boolean not null,
  primary key (job_id, slot)
);

-- Aggregators kept a row for each position.
insert into told_positions (job_id, input_index, bucket, positions)
select job_id, 0, position >> 16, range_agg(coverage_range(position, position)) from aggregator_positions group by 1, 2, 3;
insert into known_scopes (job_id, scope_key, partition_key, range_start, range_end, emitted, closed_by, closed_at, held)
select distinct on (e.producer_id, e.scope_key) e.producer_id, e.scope_key, e.partition_key, e.range_start, e.range_end,
  true, 'full', e.created_at, int8multirange(coverage_range(e.range_start, e.range_end))
from jobs j join events e on e.producer_id = j.job_id
where j.runtime = 'dispatcher' and j.operator = 'aggregator' and e.kind = 'data' order by 1, 2, e.event_id;
drop table aggregator_positions;

-- Whether a batch is to be closed: its time has come, or all the jobs that it feeds have nothing left to do.
create function batch_is_due(batch open_batches) returns boolean language sql stable as $$
  select case when batch.due_at is not null then batch.due_at <= tp_now() else not exists (
    select 1 from job_outputs x join job_inputs i using (generation_id) join tasks t on t.job_id = i.job_id
    where x.job_id = batch.job_id and t.stage in (0, 1)) end
$$;

-- How many of a job's slots tasks of a backfill may take; null: all of them, as before.
alter table jobs add column backfill_concurrency int check (backfill_concurrency > 0);
alter table dag_version_jobs add column backfill_concurrency int;
