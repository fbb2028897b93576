-- The trigger: which pipelines there are, how far the signals are consumed, and what they launch.

-- name: stored_offsets
-- Where partitions go on that were consumed before.
select partition, next_offset from trigger_offsets
where consumer_group = $1 and topic = $2 and partition = any($3::int[])

-- name: begin_partitions
-- Partitions that nobody consumed yet begin here; one that somebody else began meanwhile stays as it is.
insert into trigger_offsets (consumer_group, topic, partition, next_offset)
select $1, $2, b.partition, b.next_offset from unnest($3::int[], $4::bigint[]) as b (partition, next_offset)
order by b.partition
on conflict do nothing

-- name: oldest_open_transaction
-- Whatever this snapshot does not see was written by this transaction or a later one.
select pg_snapshot_xmin(pg_current_snapshot())::text::bigint

-- name: changed_pipelines
-- Pipelines that were written, or whose scanner list was, by a given transaction or a later one.
select array(
  select pipeline_id from pipelines where changed_in >= $1::bigint::text::xid8
  union
  select p.pipeline_id from scanner_lists l join pipelines p using (scanner_list_id)
  where l.changed_in >= $1::bigint::text::xid8
)

-- name: pipelines
-- What some pipelines are launched by.
select p.pipeline_id, coalesce(p.scanner_tickers, l.tickers) as tickers, p.signal_subscriptions, p.rules,
       p.trigger_mode = 'signal' and p.is_active and p.deleted_at is null as live
from pipelines p left join scanner_lists l using (scanner_list_id)
where p.pipeline_id = any($1::uuid[])

-- name: launch
-- Moves the offsets of a batch and launches what it matched: all of it or, if an offset is not where this consumer
-- left it, nothing. Pipelines that run are left out by a probe of the index that forbids a second run; what was
-- launched by somebody else meanwhile, or by the same signal before, falls out at the insert. Rows are locked
-- and inserted in the order of their keys, so that two instances wait for each other once. Ids are drawn first, and
-- the membership test is a hashed subplan: a join of two large sets would be planned for the few rows that a
-- parameter is guessed to hold.
with held as materialized (
  select o.next_offset = m.expected as still
  from (select * from unnest($3::int[], $4::bigint[]) as m (partition, expected) order by partition offset 0) m
  join trigger_offsets o on o.consumer_group = $1 and o.topic = $2 and o.partition = m.partition
  for no key update of o
), fence as materialized (
  select count(*) filter (where still) = cardinality($3::int[]) as holds from held
), moved as (
  update trigger_offsets o set next_offset = m.next_offset, consumed_at = tp_now()
  from unnest($3::int[], $5::bigint[]) as m (partition, next_offset), fence
  where fence.holds and o.consumer_group = $1 and o.topic = $2 and o.partition = m.partition
), idle as materialized (
  select m.pipeline_id, $8::jsonb -> m.signal as signal
  from unnest($6::uuid[], $7::int[]) as m (pipeline_id, signal), fence
  where fence.holds
    and not exists (select 1 from executions e
                    where e.pipeline_id = m.pipeline_id and e.status in ('PENDING', 'RUNNING') offset 0)
), ready as materialized (
  select uuid7() as execution_id, i.pipeline_id, i.signal, p.target, j.job_id, j.priority
  from idle i
  cross join lateral (
    select p.org_id, p.config, coalesce(p.config->>'target', 'task') as target from pipelines p
    where p.pipeline_id = i.pipeline_id and p.is_active and p.deleted_at is null offset 0) p
  left join lateral (
    select j.job_id, j.priority from dags d join jobs j using (dag_id)
    where d.org_id = p.org_id and d.name = p.config->>'dag' and j.name = p.config->>'job' and j.routed offset 0
  ) j on p.target = 'task'
), launched as (
  insert into executions (execution_id, pipeline_id, target, signal_id, signal, created_at)
  select execution_id, pipeline_id, target, signal->>'signal_id', signal, tp_now()
  from ready where job_id is not null or target = 'celery'
  order by pipeline_id
  on conflict do nothing
  returning execution_id, pipeline_id
), created as (
  insert into tasks (task_id, job_id, state, priority, kind, created_at, ready_at)
  select execution_id, job_id, 'queued', priority, 'data', tp_now(), tp_now()
  from ready
  where job_id is not null and case when execution_id in (select execution_id from launched) then true end
), handed_to_celery as (
  insert into celery_outbox (execution_id)
  select execution_id from ready
  where target = 'celery' and case when execution_id in (select execution_id from launched) then true end
)
select fence.holds, (select count(*) from idle) as idle,
       (select count(*) from ready where job_id is null and target = 'task') as without_job,
       (select array_agg(pipeline_id) from launched) as launched,
       case when exists (select 1 from launched) then pg_notify('traceplane_work', '') end
from fence
