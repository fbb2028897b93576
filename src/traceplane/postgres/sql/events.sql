-- Events come in and become tasks in one statement, so that neither is ever seen without the other.

-- name: accept
-- Inserts events that are new, drafts a task for every routed job that reads them, records lineage, and
-- writes the wake-ups of tasks that may be dispatched immediately. A task is queued instead when its
-- job is metered by the valve: a pause, a concurrency limit, a hold, a full window, a busy scope, or a queue ahead.
-- Ids are drawn first, so that nothing here has to join two large sets of rows again. Rows are inserted in the
-- order of their unique keys, so two calls with the same events in different order cannot deadlock.
with incoming as materialized (
  select nextval('events_event_id_seq') as event_id, i.*
  from unnest($1::uuid[], $2::uuid[], $3::event_kind[], $4::text[], $5::bigint[], $6::bigint[],
              $7::text[], $8::boolean[], $9::text[]) with ordinality
    as i (producer_id, generation_id, kind, partition_key, range_start, range_end, emission, backfill,
          traceparent, ord)
), inserted as (
  insert into events (event_id, producer_id, dataset_uuid, generation_id, kind, partition_key, range_start,
                      range_end, emission, backfill, traceparent, created_at)
  overriding system value
  select i.event_id, i.producer_id, g.dataset_uuid, i.generation_id, i.kind, i.partition_key, i.range_start,
         i.range_end, i.emission, i.backfill, i.traceparent, tp_now()
  from incoming i join generations g using (generation_id)
  order by i.producer_id, i.generation_id, i.partition_key collate "C", i.range_start, i.kind, i.emission collate "C",
           i.ord
  on conflict (producer_id, generation_id, scope_key, kind, emission) do nothing
  returning event_id, generation_id, kind, partition_key, range_start, range_end, scope_key, backfill, traceparent
), consumers as materialized (
  select j.job_id, ji.generation_id, j.runtime, j.queue_suffix, j.priority,
         case when j.runtime = 'dispatcher' or j.building or j.max_concurrency is not null or h.level is not null
                or exists (select 1 from job_pauses p where p.dag_id = j.dag_id and p.job = j.name)
                or exists (select 1 from tasks q where q.job_id = j.job_id and q.stage = 0 offset 0)
              then 0
              else j.dispatch_window
                   - (select count(*) from (select 1 from tasks f where f.job_id = j.job_id
                        and f.stage = 1 limit j.dispatch_window) in_flight)
         end as free,
         case when j.building then dropped_by_job(j.job_id) end as dropped  -- which a rebuild does not bring back
  from (select distinct job_id, generation_id from job_inputs where generation_id = any($2::uuid[]) and role <> 'reads') ji
  join lateral (select * from jobs j where j.job_id = ji.job_id offset 0) j
    on j.routed and j.activation = 'reactive' and j.operator <> all($11::text[])  -- which run once
  left join job_holds h on h.job_id = j.job_id
), drafts as materialized (
  select uuid7() as task_id, c.job_id, c.runtime, c.queue_suffix, e.event_id, e.kind, e.partition_key, e.range_start,
         e.range_end, e.traceparent, e.backfill,
         case when e.backfill then 1 else c.priority end as priority,
         row_number() over (partition by c.job_id order by e.event_id) <= c.free
           and row_number() over (partition by c.job_id, e.scope_key order by e.event_id) = 1
           and not exists (select 1 from tasks b where b.job_id = c.job_id and b.scope_key = e.scope_key
                             and b.stage = 1 offset 0) as at_once
  from inserted e join consumers c using (generation_id)
  where c.dropped is null or not c.dropped @> coverage_range(e.range_start, e.range_end)
), created as (
  insert into tasks (task_id, job_id, state, priority, backfill, kind, partition_key, range_start,
                     range_end, traceparent, created_at, ready_at, dispatched_at)
  select task_id, job_id,
         case when at_once then 'dispatched' else 'queued' end::task_state,
         priority, backfill, kind, partition_key, range_start, range_end, traceparent, tp_now(), tp_now(),
         case when at_once then tp_now() end
  from drafts order by job_id, partition_key collate "C", range_start, event_id
), lineage as (
  insert into task_inputs (event_id, job_id, task_id) select event_id, job_id, task_id from drafts
), sent as (
  insert into outbox (runtime, queue_suffix, task_ids)
  select runtime, queue_suffix, array_agg(task_id order by task_id) from drafts where at_once group by runtime, queue_suffix
), recorded as (
  insert into audit_log (org_id, principal, kind, action, object, remote, request_id, outcome)
  select org_id, principal, kind, action, object::jsonb, remote, request_id, 'ok'
  from unnest($12::uuid[], $13::text[], $14::text[], $15::text[], $16::text[], $17::text[], $18::text[])
    as a (org_id, principal, kind, action, object, remote, request_id)
  where exists (select 1 from inserted)
)
select (select array_agg(event_id order by ord) from incoming) as drawn,
       (select array_agg(event_id) from inserted) as inserted,
       (select count(*) from drafts) as tasks_created,
       (select count(*) from drafts where at_once) as tasks_dispatched,
       case when $10::boolean and exists (select 1 from drafts) then pg_notify('traceplane_work', '') end

-- name: notify_dispatchers
-- Notifies dispatchers of work that another process left in the outbox or the queue.
select pg_notify('traceplane_work', '')

-- name: latest_by_cursor
-- The last event of each of the highest cursors of a generation.
select distinct on (range_start) range_start, emission, kind::text as kind
from events where generation_id = $1::uuid and partition_key is null
order by range_start desc, event_id desc limit $2

-- name: emissions_of_tasks
-- The emission of the event that each task was made for.
select i.task_id, e.emission from task_inputs i join events e using (event_id) where i.task_id = any($1::uuid[])

-- name: tally
-- The number of events of generations, counted up to a limit, and their last position.
select g.generation_id, least(n.events, $2::bigint) as events, greatest(c.last, p.last) as last
from unnest($1::uuid[]) g (generation_id)
cross join lateral (
  select count(*) as events from (
    (select 1 from events where generation_id = g.generation_id and partition_key is null limit $2)
    union all
    (select 1 from events where generation_id = g.generation_id and partition_key is not null limit $2)
  ) e
) n
left join lateral (select range_end as last from events
  where generation_id = g.generation_id and partition_key is null order by range_start desc limit 1) c on true
left join lateral (select range_end as last from events
  where generation_id = g.generation_id and partition_key is not null order by range_start desc limit 1) p on true
where n.events > 0
