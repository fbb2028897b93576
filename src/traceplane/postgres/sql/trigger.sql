-- The trigger: which pipelines there are, how far the signals are consumed, and what they launch.

-- name: stored_offsets
-- The offsets at which partitions continue that were consumed before.
select partition, next_offset from trigger_offsets
where consumer_group = $1 and topic = $2 and partition = any($3::int[])

-- name: begin_partitions
-- The first offsets of new partitions; one that another instance began meanwhile is not changed.
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
-- What launches these pipelines.
select p.pipeline_id, p.org_id, coalesce(p.scanner_tickers, l.tickers) as tickers, p.signal_subscriptions, p.rules,
       p.trigger_mode = 'signal' and p.is_active and p.deleted_at is null as live
from pipelines p left join scanner_lists l using (scanner_list_id)
where p.pipeline_id = any($1::uuid[])

-- name: launch
-- Moves the offsets of a batch and launches what it matched: all of it or, if an offset is not where this consumer
-- left it, nothing. Running pipelines are excluded by a probe of the index that forbids a second run; those that
-- another instance launches meanwhile are skipped at the insert. A pipeline may come with several signals: the first
-- that did not launch it before counts. If none is left and the caller did not pass all it has ($9), nothing happens
-- either, and the result names the pipelines to pass more for: only repeated signals cost a second statement.
-- Users' limits are token buckets; their rows are locked, so that instances cannot spend the same tokens.
-- Rows are locked and inserted in the order of their keys, so that two instances cannot deadlock. Ids are
-- drawn first, and membership is tested by hashed subplans: a join of two large sets would be planned for the few rows
-- that a parameter is guessed to hold.
with held as materialized (
  select o.next_offset = m.expected as still
  from (select * from unnest($3::int[], $4::bigint[]) as m (partition, expected) order by partition offset 0) m
  join trigger_offsets o on o.consumer_group = $1 and o.topic = $2 and o.partition = m.partition
  for no key update of o
), fence as materialized (
  select count(*) filter (where still) = cardinality($3::int[]) as holds from held
), idle as materialized (
  select m.pipeline_id, m.place, $8::jsonb -> m.signal as signal
  from unnest($6::uuid[], $7::int[]) with ordinality as m (pipeline_id, signal, place), fence
  where fence.holds
    and not exists (select 1 from executions e
                    where e.pipeline_id = m.pipeline_id and e.status in ('PENDING', 'RUNNING') offset 0)
), fresh as materialized (
  select distinct on (i.pipeline_id) i.pipeline_id, i.signal, i.place from idle i
  where not exists (select 1 from executions e
                    where e.pipeline_id = i.pipeline_id and e.signal_id = i.signal->>'signal_id' offset 0)
  order by i.pipeline_id, i.place
), repeated as materialized (
  select pipeline_id from idle except select pipeline_id from fresh
), go as materialized (
  select fence.holds and ($9::boolean or not exists (select 1 from repeated)) as now from fence
), moved as (
  update trigger_offsets o set next_offset = m.next_offset, consumed_at = tp_now()
  from unnest($3::int[], $5::bigint[]) as m (partition, next_offset), go
  where go.now and o.consumer_group = $1 and o.topic = $2 and o.partition = m.partition
), ready as materialized (
  select uuid7() as execution_id, f.pipeline_id, f.signal, f.place, p.org_id, p.user_id, p.target, j.job_id, j.priority
  from fresh f
  join go on go.now
  cross join lateral (
    select p.org_id, p.user_id, p.config, p.launches_per_hour, coalesce(p.config->>'target', 'task') as target
    from pipelines p where p.pipeline_id = f.pipeline_id and p.is_active and p.deleted_at is null offset 0) p
  left join lateral (
    select j.job_id, j.priority from dags d join jobs j using (dag_id)
    where d.org_id = p.org_id and d.name = p.config->>'dag' and j.name = p.config->>'job' and j.routed
      and not j.building offset 0
  ) j on p.target = 'task'
  where p.launches_per_hour is null
     or p.launches_per_hour > (select count(*) from executions e where e.pipeline_id = f.pipeline_id
                                 and e.created_at > tp_now() - interval '1 hour')
), limited as materialized (
  select r.org_id, r.user_id, r.execution_ids,
         least(u.launches_per_hour, coalesce(u.available, u.launches_per_hour)
               + u.launches_per_hour * extract(epoch from tp_now() - u.counted_at) / 3600)::float8 as available
  from (select org_id, user_id, array_agg(execution_id order by place) as execution_ids
        from ready where job_id is not null or target = 'celery' group by 1, 2 order by 1, 2 offset 0) r
  join trigger_user_limits u using (org_id, user_id)
  for no key update of u
), spent as (
  update trigger_user_limits u
  set available = l.available - least(floor(l.available), cardinality(l.execution_ids)), counted_at = tp_now()
  from limited l where u.org_id = l.org_id and u.user_id = l.user_id
), held_back as materialized (
  select unnest(l.execution_ids[floor(l.available)::int + 1:]) as execution_id from limited l
), launched as (
  insert into executions (execution_id, pipeline_id, target, signal_id, signal, created_at)
  select execution_id, pipeline_id, target, signal->>'signal_id', signal, tp_now()
  from ready
  where (job_id is not null or target = 'celery')
    and case when execution_id in (select execution_id from held_back) then false else true end
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
select fence.holds,
       case when not go.now then array(select pipeline_id from repeated) end as repeated,
       array(select pipeline_id from launched) as launched,
       (select count(distinct pipeline_id) from idle) as idle,
       (select count(*) from ready where job_id is null and target = 'task') as without_job,
       (select count(*) from fresh) - (select count(*) from ready) + (select count(*) from held_back) as held_back,
       case when exists (select 1 from launched) then pg_notify('traceplane_work', '') end
from fence, go
