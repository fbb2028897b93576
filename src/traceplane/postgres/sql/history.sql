-- History that has ended. A statement looks at one page of a table in the order of its key, deletes what has ended
-- of it, and says where the next page begins. `$4` is a dry run: it counts and deletes nothing.
-- What stays, and why, is a table in docs/concepts/retention.md.

-- name: claim_round
-- Whether a round is due; it is then this caller's for a while.
insert into retention_rounds as r (kind, due_at) values ($1, tp_now() + $2::interval)
on conflict (kind) do update set due_at = excluded.due_at where r.due_at <= tp_now()
returning true

-- name: postpone_round
-- When a round is due again: later while it runs, soon if it failed, and after its interval if it is over.
update retention_rounds set due_at = tp_now() + $2::interval where kind = $1

-- name: end_dead_tasks
-- Dead tasks whose work has been done since, or whose job can never serve again. They go before the tasks that did it.
with page as materialized (
  select task_id, job_id, finished_at, standing from dead_tasks
  where task_id > $1 and finished_at < tp_now() - $2::interval order by task_id limit $3
), ended as materialized (
  select task_id from page where standing = 'superseded' or not job_in_reach(job_id)
), locked as materialized (
  select t.task_id from tasks t join ended using (task_id)
  where t.stage = 3 and not $4::boolean order by t.task_id for update of t skip locked
), logs as (
  delete from task_logs l using locked k where l.task_id = k.task_id
), attempts as (
  delete from task_attempts a using locked k where a.task_id = k.task_id
), reads as (
  delete from task_reads r using locked k where r.task_id = k.task_id
), compactions_made as (
  delete from compactions c using locked k where c.task_id = k.task_id
), gone as (
  delete from tasks t using locked k where t.task_id = k.task_id
)
select (select count(*) from ended) as ended, count(*) as looked_at,
       (array_agg(task_id order by task_id desc))[1] as last, false as young
from page

-- name: end_tasks
-- Completed and canceled tasks. A task with a name of its own is found by that name as long as its job may serve. The
-- lineage of a completed one stays with its event: it says that the job has had the event.
with page as materialized (
  select task_id, job_id, stage, finished_at, dedupe_key, created_at from tasks
  where task_id > $1 order by task_id limit $3
), ended as materialized (
  select p.task_id from page p
  where p.stage = 2 and p.finished_at < tp_now() - $2::interval
    and (p.dedupe_key is null or not job_in_reach(p.job_id))
    and not exists (select 1 from executions e where e.execution_id = p.task_id and e.status in ('PENDING', 'RUNNING') offset 0)
), locked as materialized (
  select t.task_id, t.state from tasks t join ended using (task_id)
  where t.stage = 2 and not $4::boolean order by t.task_id for update of t skip locked
), logs as (
  delete from task_logs l using locked k where l.task_id = k.task_id
), attempts as (
  delete from task_attempts a using locked k where a.task_id = k.task_id
), reads as (
  delete from task_reads r using locked k where r.task_id = k.task_id
), compactions_made as (
  delete from compactions c using locked k where c.task_id = k.task_id
), lineage as (
  delete from task_inputs i using locked k where i.task_id = k.task_id and k.state = 'canceled'
), gone as (
  delete from tasks t using locked k where t.task_id = k.task_id
)
select (select count(*) from ended) as ended, count(*) as looked_at,
       (array_agg(task_id order by task_id desc))[1] as last,
       coalesce(min(created_at) >= tp_now() - $2::interval, true) as young
from page

-- name: end_events
-- Events, with their lineage, that a later event of their scope replaced, or whose generation nobody can read any more;
-- unless a task that they made is kept. The last event of a scope is what a rebuild replays, and recognizes repetitions;
-- it goes when its dataset drops the scope. A dataset that consists of events alone drops it here.
with page as materialized (
  select event_id, dataset_uuid, generation_id, partition_key, range_start, range_end, created_at from events
  where event_id > $1 order by event_id limit $3
), retained as materialized (
  select d.dataset_uuid, tp_now() - make_interval(secs => (d.definition->>'retention')::float8) as since,
         ever_dropped(d.dataset_uuid) as dropped,
         not exists (select 1 from generation_cursors k where k.generation_id = d.current_generation_id) as only_events
  from datasets d where d.dataset_uuid in (select dataset_uuid from page) and d.definition->>'retention' is not null
), ended as materialized (
  select p.event_id, p.dataset_uuid, p.range_start, p.range_end, later.came as replaced, coalesce(r.only_events, false) as only_events
  from page p left join retained r on r.dataset_uuid = p.dataset_uuid and p.created_at < r.since
    and (r.only_events or r.dropped @> coverage_range(p.range_start, p.range_end))
  cross join lateral (
    select case when p.partition_key is null then exists (
           select 1 from events n where n.generation_id = p.generation_id and n.partition_key is null
             and n.range_start = p.range_start and n.event_id > p.event_id offset 0)
         else exists (
           select 1 from events n where n.generation_id = p.generation_id and n.partition_key is not null
             and n.range_start = p.range_start and n.partition_key = p.partition_key and n.event_id > p.event_id offset 0)
         end as came offset 0) later
  where p.created_at < tp_now() - $2::interval
    and not exists (select 1 from task_inputs i join tasks t using (task_id) where i.event_id = p.event_id
                      and (t.stage <> 2 or t.finished_at >= tp_now() - $2::interval) offset 0)
    and (later.came or r.dataset_uuid is not null or not generation_in_reach(p.generation_id))
), locked as materialized (
  select e.event_id from events e join ended using (event_id)
  where not $4::boolean order by e.event_id for update of e skip locked
), dropped as (
  insert into dropped_positions as d (dataset_uuid, bucket, positions)
  select e.dataset_uuid, coverage_bucket(e.range_start, e.range_end), range_agg(coverage_range(e.range_start, e.range_end))
  from ended e join locked using (event_id) where e.only_events and not e.replaced group by 1, 2 order by 1, 2
  on conflict (dataset_uuid, bucket) do update set positions = d.positions + excluded.positions
), lineage as (
  delete from task_inputs i using locked k where i.event_id = k.event_id
), gone as (
  delete from events e using locked k where e.event_id = k.event_id
)
select (select count(*) from ended) as ended, count(*) as looked_at, max(event_id) as last,
       coalesce(min(created_at) >= tp_now() - $2::interval, true) as young
from page

-- name: end_executions
-- Finished executions of pipelines, after their tasks. The last one of a schedule says which time comes next.
with page as materialized (
  select execution_id, pipeline_id, scheduled_for, finished_at, created_at from executions
  where execution_id > $1 order by execution_id limit $3
), ended as materialized (
  select p.execution_id from page p
  where p.finished_at < tp_now() - $2::interval
    and not exists (select 1 from tasks t where t.task_id = p.execution_id
                      and (t.stage <> 2 or t.finished_at >= tp_now() - $2::interval) offset 0)
    and (p.scheduled_for is null or exists (
      select 1 from executions n where n.pipeline_id = p.pipeline_id and n.scheduled_for > p.scheduled_for offset 0))
), locked as materialized (
  select e.execution_id from executions e join ended using (execution_id)
  where not $4::boolean order by e.execution_id for update of e skip locked
), gone as (
  delete from executions e using locked k where e.execution_id = k.execution_id
)
select (select count(*) from ended) as ended, count(*) as looked_at,
       (array_agg(execution_id order by execution_id desc))[1] as last,
       coalesce(min(created_at) >= tp_now() - $2::interval, true) as young
from page

-- name: end_code
-- Bundles of code, and locks, that no job names which is in reach or has unfinished tasks. A deploy of a stored bundle renews it, so
-- one that has just been chosen is not deleted.
with page as materialized (
  select bundle_hash, created_at from code_bundles where bundle_hash > $1 order by bundle_hash limit $3
), used as materialized (
  select distinct named.bundle_hash from jobs j
  cross join lateral (values (j.definition->>'code_bundle'), (j.definition->>'environment')) named (bundle_hash)
  where named.bundle_hash is not null
    and (job_in_reach(j.job_id) or has_unfinished_tasks(j.job_id))
), ended as materialized (
  select p.bundle_hash from page p
  where p.created_at < tp_now() - $2::interval and not exists (select 1 from used u where u.bundle_hash = p.bundle_hash)
), gone as (
  delete from code_bundles b using ended e
  where b.bundle_hash = e.bundle_hash and b.created_at < tp_now() - $2::interval and not $4::boolean
)
select (select count(*) from ended) as ended, count(*) as looked_at, max(bundle_hash) as last, false as young from page

-- name: end_audit
-- Rows of the audit log, which its trigger lets go only now.
with page as materialized (
  select audit_id, at from audit_log where audit_id > $1 order by audit_id limit $3
), ended as materialized (
  select audit_id from page where at < tp_now() - $2::interval
), gone as (
  delete from audit_log a using ended e where a.audit_id = e.audit_id and not $4::boolean
)
select (select count(*) from ended) as ended, count(*) as looked_at, max(audit_id) as last,
       coalesce(min(at) >= tp_now() - $2::interval, true) as young
from page

-- name: end_dead_letters
-- Wake-ups that nobody could receive.
with page as materialized (
  select message_id, buried_at from wake_dead_letters where message_id > $1 order by message_id limit $3
), ended as materialized (
  select message_id from page where buried_at < tp_now() - $2::interval
), gone as (
  delete from wake_dead_letters d using ended e where d.message_id = e.message_id and not $4::boolean
)
select (select count(*) from ended) as ended, count(*) as looked_at, max(message_id) as last, false as young from page

-- name: end_check_failures
-- Failed checks. The last word on the freshness of a dataset stays: without it, the failure would be found again.
with page as materialized (
  select failure_id, dataset_uuid, name, task_id, at from check_failures where failure_id > $1 order by failure_id limit $3
), ended as materialized (
  select p.failure_id from page p
  where p.at < tp_now() - $2::interval and (p.task_id is not null or exists (
    select 1 from check_failures n where n.dataset_uuid = p.dataset_uuid and n.name = p.name and n.task_id is null
      and n.failure_id > p.failure_id))
), gone as (
  delete from check_failures f using ended e where f.failure_id = e.failure_id and not $4::boolean
)
select (select count(*) from ended) as ended, count(*) as looked_at, max(failure_id) as last,
       coalesce(min(at) >= tp_now() - $2::interval, true) as young
from page

-- name: end_deliveries
-- Messages that were delivered, given up or withdrawn.
with page as materialized (
  select delivery_id, ended_at, created_at from alert_deliveries where delivery_id > $1 order by delivery_id limit $3
), ended as materialized (
  select delivery_id from page where ended_at < tp_now() - $2::interval
), gone as (
  delete from alert_deliveries d using ended e where d.delivery_id = e.delivery_id and d.ended_at is not null and not $4::boolean
)
select (select count(*) from ended) as ended, count(*) as looked_at,
       (array_agg(delivery_id order by delivery_id desc))[1] as last,
       coalesce(min(created_at) >= tp_now() - $2::interval, true) as young
from page

-- name: end_alerts
-- Alerts that were retracted, and those whose rows nobody can read any more, after their messages: one with a key that
-- a message has would not be sent. Others stay, however old: without them, they would be found and sent again.
with page as materialized (
  select alert_event_id, org_id, dag, key, generations, found_at, retracted_at from alert_events
  where alert_event_id > $1 order by alert_event_id limit $3
), ended as materialized (
  select p.alert_event_id from page p
  where case when p.retracted_at is not null then p.retracted_at < tp_now() - $2::interval
        else p.dag <> '' and p.found_at < tp_now() - $2::interval
          and not exists (select 1 from unnest(p.generations) g where generation_in_reach(g)) end
    and not exists (select 1 from alert_deliveries d where d.org_id = p.org_id and d.incident = p.key offset 0)
), silences as (
  delete from alert_silences where ends_at < tp_now() - $2::interval and not $4::boolean
), locked as materialized (
  select e.alert_event_id from alert_events e join ended using (alert_event_id)
  where not $4::boolean order by e.alert_event_id for update of e skip locked
), gone as (
  delete from alert_events e using locked k, page p
  where e.alert_event_id = k.alert_event_id and p.alert_event_id = e.alert_event_id
    and e.retracted_at is not distinct from p.retracted_at
)
select (select count(*) from ended) as ended, count(*) as looked_at,
       (array_agg(alert_event_id order by alert_event_id desc))[1] as last,
       coalesce(min(found_at) >= tp_now() - $2::interval, true) as young
from page

-- name: end_job_memory
-- What jobs that can never serve again remember: positions that were received or passed on, known scopes and open
-- batches. A page of jobs; of each table at most so many rows at once, so a page is repeated until it has none.
with page as materialized (
  select j.job_id from jobs j where j.job_id > $1 and not j.routed and not job_in_reach(j.job_id)
    and (exists (select 1 from open_batches b where b.job_id = j.job_id offset 0)
      or exists (select 1 from told_positions p where p.job_id = j.job_id offset 0)
      or exists (select 1 from passed_positions p where p.job_id = j.job_id offset 0)
      or exists (select 1 from told_periods p where p.job_id = j.job_id offset 0)
      or exists (select 1 from known_scopes s where s.job_id = j.job_id offset 0))
    and not has_unfinished_tasks(j.job_id)
  order by j.job_id limit 1
), filling as materialized (
  select b.job_id, b.slot from open_batches b join page using (job_id) limit $3
), told as materialized (
  select p.job_id, p.input_index, p.bucket from told_positions p join page using (job_id) limit $3
), passed as materialized (
  select p.job_id, p.bucket from passed_positions p join page using (job_id) limit $3
), periods as materialized (
  select p.job_id, p.input_index, p.period from told_periods p join page using (job_id) limit $3
), known as materialized (
  select s.job_id, s.scope_key from known_scopes s join page using (job_id) limit $3
), filling_gone as (
  delete from open_batches b using filling o
  where b.job_id = o.job_id and b.slot = o.slot and not $4::boolean
), told_gone as (
  delete from told_positions p using told o
  where p.job_id = o.job_id and p.input_index = o.input_index and p.bucket = o.bucket and not $4::boolean
), passed_gone as (
  delete from passed_positions p using passed o
  where p.job_id = o.job_id and p.bucket = o.bucket and not $4::boolean
), added_gone as (
  delete from aggregators_added a using page where a.job_id = page.job_id and not $4::boolean
), periods_gone as (
  delete from told_periods p using periods o
  where p.job_id = o.job_id and p.input_index = o.input_index and p.period = o.period and not $4::boolean
), known_gone as (
  delete from known_scopes s using known o
  where s.job_id = o.job_id and s.scope_key = o.scope_key and not $4::boolean
)
select (select count(*) from filling) + (select count(*) from told) + (select count(*) from passed)
         + (select count(*) from periods) + (select count(*) from known) as ended,
       count(*) as looked_at,
       case when $4::boolean or (select count(*) from filling) < $3 and (select count(*) from told) < $3
                                 and (select count(*) from passed) < $3 and (select count(*) from periods) < $3 and (select count(*) from known) < $3
            then (array_agg(job_id))[1] else $1 end as last,
       $2::interval is null as young
from page
