-- The lifecycle of a task. Every statement locks rows in the order of their ids, so none deadlocks another.
-- `offset 0` in an EXISTS keeps it a probe by index: as a join it would be planned for the few rows that a
-- partial index held when the plan was made. Several stages are asked for by `or`: no partial index covers `stage in (0, 1)`.

-- name: claim
-- dispatched -> running, once: the second of two claims of one task waits for the first and then gets nothing.
-- The subselect reads the ids in order, so that two calls lock their rows in the same order; for the same reason
-- one statement handles all the claims of a group. The local wake-ups that led to the claims are deleted.
-- A worker of some organizations names them; for one of all (null) nothing is looked up.
with spent as (
  delete from wake_messages m using unnest($5::text[], $6::bigint[]) as r (queue, message_id)
  where m.queue = r.queue and m.message_id = r.message_id
)
update tasks t
set state = 'running', attempt = t.attempt + 1, lease_token = gen_random_uuid(),
    lease_expires_at = tp_now() + j.lease, worker_id = w.worker_id, started_at = tp_now(), progress = null
from (select * from unnest($1::uuid[], $2::int[], $3::text[], $4::text[], $7::text[], $8::text[])
        as w (task_id, claim, worker_id, runtime, queues, orgs)
      order by task_id offset 0) w, jobs j
where t.task_id = w.task_id and t.state = 'dispatched' and j.job_id = t.job_id and j.runtime = w.runtime
  and (j.requires is null or j.queue_suffix = any(string_to_array(w.queues, ',')))
  and (w.orgs is null or exists (select 1 from dags d join orgs o using (org_id)
                                 where d.dag_id = j.dag_id and o.slug = any(string_to_array(w.orgs, ','))))
returning t.task_id, t.job_id, t.attempt, t.lease_token, t.kind, t.partition_key,
          t.range_start, t.range_end, t.traceparent, t.created_at, j.revision, w.claim

-- name: why_not_claimed
-- The reason a claim was refused, for each task that was not claimed. Tasks of organizations that the worker does not
-- serve ($2; null: it serves all) are unknown to it.
select w.task_id, t.state, j.runtime, j.queue_suffix, j.requires is not null as requires
from unnest($1::uuid[]) as w (task_id)
left join (tasks t join jobs j using (job_id) join dags d using (dag_id) join orgs o using (org_id))
  on t.task_id = w.task_id and ($2::text[] is null or o.slug = any($2))

-- name: fetch
-- One task as its holder sees it; a stale holder gets no row.
select t.task_id, t.job_id, t.attempt, t.lease_token, t.kind, t.partition_key,
       t.range_start, t.range_end, t.traceparent, t.created_at, j.revision, t.state, t.cancel_requested
from tasks t join jobs j using (job_id)
where t.task_id = $1 and t.attempt = $2 and t.lease_token = $3

-- name: lock
-- Tasks, locked until the transaction ends; model.task decides what happens to them.
select t.task_id, t.job_id, t.state, t.attempt, t.lease_token, t.reported_attempt, t.cancel_requested,
       j.max_attempts + t.granted_attempts as max_attempts,
       j.source_kind is not distinct from 'always_on' as endless,
       j.definition->>'update_strategy' is distinct from 'append'
         and j.source_kind is distinct from 'pipeline' as replaces,
       coalesce((j.definition->>'compacts_files')::boolean, false) as compacts, t.backfill, t.traceparent,
       extract(epoch from tp_now() - t.started_at)::float8 as seconds
from tasks t join jobs j using (job_id)
where t.task_id = any($1::uuid[])
order by t.task_id
for no key update of t

-- name: lock_jobs
-- The jobs of these tasks, locked before the tasks, as the valve does: nobody else can use their free slots.
select j.job_id from jobs j
where j.job_id = any(array(select t.job_id from tasks t where t.task_id = any($1::uuid[])))
order by j.job_id
for no key update

-- name: revivable
-- Which of these reaped but living tasks may continue: no other task of their scope is in flight, nor has committed what
-- they would replace by something older, and their job has room for them. A task that was dispatched again already has
-- its slot.
with asked as materialized (
  select t.task_id, t.job_id, t.stage, t.scope_key, j.max_concurrency,
         exists (select 1 from tasks r where r.job_id = t.job_id and r.scope_key = t.scope_key and r.stage = 1
                   and r.task_id <> t.task_id offset 0) as busy
  from tasks t join jobs j using (job_id)
  where t.task_id = any($1::uuid[]) and not (
    j.definition->>'update_strategy' is distinct from 'append' and exists (
      select 1 from job_outputs o join generation_cursors k using (generation_id) join dataset_commits c using (generation_id)
      where o.job_id = t.job_id and c.superseded_by is null and c.task_id <> t.task_id and c.committed_at > t.started_at
        and c.range_start >= greatest(t.range_start::numeric - k.widest, -9223372036854775808)::bigint
        and c.range_start <= t.range_end and c.range_end >= t.range_start offset 0))
), apart as (
  select task_id, job_id, max_concurrency,
         row_number() over (partition by job_id, coalesce(scope_key, task_id::text) order by task_id) as nth
  from asked where stage <> 1 and not busy
), in_line as (
  select task_id, job_id, max_concurrency, row_number() over (partition by job_id order by task_id) as place
  from apart where nth = 1
)
select task_id from asked where stage = 1
union all
select l.task_id from in_line l
where l.max_concurrency is null
   or l.place <= l.max_concurrency - (select count(*) from tasks f where f.job_id = l.job_id and f.stage = 1)

-- name: extend
-- Extends the leases of living attempts; a task that was reaped but not claimed again continues.
update tasks t set lease_expires_at = greatest(t.lease_expires_at, tp_now() + j.lease), state = 'running', finished_at = null,
                   progress = coalesce(u.progress, t.progress)
from unnest($1::uuid[], $2::jsonb[]) as u (task_id, progress), jobs j
where t.task_id = u.task_id and j.job_id = t.job_id
returning t.task_id, t.lease_expires_at

-- name: mark_completed
-- The current attempt succeeded.
update tasks set state = 'completed', reported_attempt = attempt, finished_at = tp_now(), error = null
where task_id = any($1::uuid[])

-- name: mark_canceled
-- The current attempt stopped because it was canceled.
update tasks set state = 'canceled', reported_attempt = attempt, finished_at = tp_now(), cancel_requested = true
where task_id = any($1::uuid[])

-- name: mark_not_computable
-- Claimed tasks that would read what an input has dropped; each with an error that says so.
update tasks t set state = 'canceled', reported_attempt = t.attempt, finished_at = tp_now(), cancel_requested = true,
                   error = u.error
from unnest($1::uuid[], $2::jsonb[]) as u (task_id, error) where t.task_id = u.task_id

-- name: mark_failed
-- Failed attempts, with the states that model.task decided on; a queued task waits for a pause that doubles, with
-- jitter. An attempt that is not `reported` ($5) may still report: its lease expired, but it may be alive.
update tasks t set attempt = u.attempt, reported_attempt = case when $5 then u.attempt else t.reported_attempt end,
  state = u.state::task_state, finished_at = case when u.state <> 'queued' then tp_now() end,
  error = u.error, acknowledged_at = null,
  ready_at = tp_now() + least(j.retry_max, j.retry_base * power(2, least(greatest(u.attempt - t.granted_attempts - 1, 0), 20))) * (0.5 + random() / 2)
from unnest($1::uuid[], $2::int[], $3::text[], $4::jsonb[]) as u (task_id, attempt, state, error), jobs j
where t.task_id = u.task_id and j.job_id = t.job_id

-- name: mark_returned
-- The current attempt was returned by a stopping worker: requeued immediately, and it does not count.
update tasks set state = 'queued', reported_attempt = attempt, granted_attempts = granted_attempts + 1,
                 ready_at = tp_now(), finished_at = null
where task_id = any($1::uuid[])

-- name: hold_fences
-- Which of these attempts are current and running; locks them until the transaction ends.
select t.task_id, t.attempt, t.lease_token, t.cancel_requested, t.backfill
from tasks t
where t.task_id = any($1::uuid[]) and t.state = 'running'
order by t.task_id
for share of t

-- name: lock_expired
-- Running tasks whose lease expired. Not ordered by an indexed column, or Postgres would read the whole table in that
-- order until enough are found.
with expired as materialized (
  select task_id, job_id, attempt, granted_attempts, cancel_requested, worker_id
  from tasks where stage = 1 and state = 'running' and lease_expires_at < tp_now()
  order by lease_expires_at limit $1 for no key update skip locked
)
select e.task_id, e.worker_id, e.attempt, j.max_attempts + e.granted_attempts as max_attempts, e.cancel_requested,
       j.source_kind is not distinct from 'always_on' as endless
from expired e join jobs j using (job_id)

-- name: resend
-- Resends wake-ups that may be lost: dispatched, not claimed for too long. The wait grows with each resend.
with lost as materialized (
  select t.task_id from tasks t
  where t.stage = 1 and t.state = 'dispatched' and t.dispatched_at < tp_now() - $1::interval * power(2, least(t.resends, 6))
  order by t.dispatched_at limit $2 for no key update skip locked
), moved as (
  update tasks t set dispatched_at = tp_now(), resends = t.resends + 1
  from lost where t.task_id = lost.task_id
  returning t.task_id, t.job_id
), sent as (
  insert into outbox (runtime, queue_suffix, task_ids)
  select j.runtime, j.queue_suffix, array_agg(m.task_id order by m.task_id)
  from moved m join jobs j using (job_id) group by j.runtime, j.queue_suffix
)
select count(*) from moved

-- name: waiting_kinds
-- Whether anything is queued, and for which kind of job, without locking; most passes of the valve end here.
with recursive waiting as (
  (select job_id from tasks where stage = 0 order by job_id limit 1)
  union all
  select (select t.job_id from tasks t where t.stage = 0 and t.job_id > w.job_id order by t.job_id limit 1)
  from waiting w where w.job_id is not null
)
select distinct j.runtime = 'dispatcher' as in_process from waiting join jobs j using (job_id)

-- name: waiting_jobs
-- Jobs with queued tasks, found by skipping through the index rather than reading every waiting task; the
-- rows are locked so that only one dispatcher meters a job at a time. Tasks of retired jobs wait to be canceled: one that
-- routes alerts would speak for the version that serves.
with recursive waiting as (
  (select job_id from tasks where stage = 0 order by job_id limit 1)
  union all
  select (select t.job_id from tasks t where t.stage = 0 and t.job_id > w.job_id order by t.job_id limit 1)
  from waiting w where w.job_id is not null
)
select j.job_id, j.runtime, j.operator
from waiting w join jobs j using (job_id) left join job_holds h using (job_id)
where j.routed and coalesce(h.level, 0) < 2 and (j.runtime = 'dispatcher') = $1
  and not (j.building and reads_unfinished(j.job_id))
  and not exists (select 1 from job_pauses p where p.dag_id = j.dag_id and p.job = j.name)
order by j.job_id
for no key update of j skip locked

-- name: dispatch
-- Dispatches queued tasks, oldest first, normal before backfill, as far as each job has room. The jobs are
-- locked (waiting_jobs); the tasks need not be: one that was canceled meanwhile is no longer queued. A job may have been
-- paused after waiting_jobs chose it and before it locked it.
with gates as materialized (
  select j.job_id, j.runtime, j.queue_suffix, coalesce(h.level, 0) as held,
         coalesce(j.max_concurrency, j.dispatch_window) - f.all_tasks as free,
         j.backfill_concurrency - f.backfills as backfill_free
  from jobs j left join job_holds h using (job_id)
  cross join lateral (select count(*) as all_tasks, count(*) filter (where f.priority = 1) as backfills
    from tasks f where f.job_id = j.job_id and f.stage = 1) f
  where j.job_id = any($1::uuid[])
    and not exists (select 1 from job_pauses p where p.dag_id = j.dag_id and p.job = j.name)
), picked as materialized (
  select p.task_id, g.job_id, g.runtime, g.queue_suffix, row_number() over (partition by g.job_id, p.scope_key order by p.task_id) as nth
  from gates g cross join lateral (
    (select t.task_id, t.priority, t.ready_at, coalesce(t.scope_key, t.task_id::text) as scope_key from tasks t
     where t.job_id = g.job_id and t.stage = 0 and t.priority = 0 and t.ready_at <= tp_now()
       and not exists (select 1 from tasks b where b.job_id = t.job_id and b.scope_key = t.scope_key
                         and b.stage = 1 offset 0)
     order by t.ready_at, t.task_id limit greatest(least(g.free, $2), 0))
    union all
    (select t.task_id, t.priority, t.ready_at, coalesce(t.scope_key, t.task_id::text) from tasks t
     where t.job_id = g.job_id and t.stage = 0 and t.priority = 1 and g.held = 0 and t.ready_at <= tp_now()
       and not exists (select 1 from tasks b where b.job_id = t.job_id and b.scope_key = t.scope_key
                         and b.stage = 1 offset 0)
     order by t.ready_at, t.task_id limit greatest(least(g.free, g.backfill_free, $2), 0))
    order by priority, ready_at, task_id limit greatest(least(g.free, $2), 0)
  ) p
  where g.free > 0
), moved as (
  update tasks t set state = 'dispatched', dispatched_at = tp_now(), resends = 0
  from (select task_id, runtime, queue_suffix from picked where nth = 1 order by task_id offset 0) p
  where t.task_id = p.task_id and t.state = 'queued'
  returning t.task_id, p.runtime, p.queue_suffix
), sent as (
  insert into outbox (runtime, queue_suffix, task_ids)
  select runtime, queue_suffix, array_agg(task_id order by task_id) from moved group by runtime, queue_suffix
)
select count(*) from moved

-- name: take_in_process
-- Queued tasks of one dispatcher-run job, locked until they are finished in this same transaction.
select t.task_id, t.kind, t.partition_key, t.range_start, t.range_end, t.traceparent, t.backfill, t.progress,
       t.attempt, j.max_attempts + t.granted_attempts as max_attempts, t.cancel_requested,
       j.source_kind is not distinct from 'always_on' as endless
from tasks t join jobs j using (job_id) left join job_holds h using (job_id)
where t.job_id = $1 and t.stage = 0 and t.ready_at <= tp_now()
  and (coalesce(h.level, 0) = 0 or t.priority = 0)
  and not exists (select 1 from job_pauses p where p.dag_id = j.dag_id and p.job = j.name)
order by t.priority, t.ready_at, t.task_id limit $2
for no key update of t skip locked

-- name: waiting_publishers
-- Jobs that publish signals and have queued tasks, locked so that only one dispatcher works on them.
select j.job_id from jobs j
where j.runtime = 'dispatcher' and j.operator = any($1::text[])
  and not exists (select 1 from job_pauses p where p.dag_id = j.dag_id and p.job = j.name)
  and exists (select 1 from tasks t where t.job_id = j.job_id and t.stage = 0 and t.ready_at <= tp_now() offset 0)
order by j.job_id for no key update of j skip locked

-- name: finish_in_process
-- queued -> completed for work that was done inside the dispatcher's own transaction.
update tasks set state = 'completed', attempt = attempt + 1, reported_attempt = attempt + 1,
                 lease_token = gen_random_uuid(), lease_expires_at = tp_now(),
                 worker_id = 'dispatcher', started_at = tp_now(), finished_at = tp_now()
where task_id = any($1::uuid[])

-- name: keep_progress
-- Stores the progress of tasks that the dispatcher continues in its next pass.
update tasks t set progress = u.progress
from unnest($1::uuid[], $2::jsonb[]) as u (task_id, progress) where t.task_id = u.task_id

-- name: start_sources
-- Every always-on source has one run, always under one id, so that its events are deduplicated across restarts.
with missing as (
  insert into tasks (task_id, job_id, dedupe_key, state, priority, kind, created_at, ready_at)
  select uuid7(), j.job_id, 'source', 'queued', 0, 'data', tp_now(), tp_now()
  from jobs j where j.routed and j.source_kind = 'always_on'
    and not (j.building and exists (  -- it takes over at the cutover; until then its predecessor does the work
      select 1 from job_outputs o join datasets d using (dataset_uuid)
      where o.job_id = j.job_id and o.generation_id = d.current_generation_id))
  on conflict (job_id, dedupe_key) where dedupe_key is not null do nothing
  returning task_id
), revived as (
  update tasks t set state = 'queued', finished_at = null, ready_at = tp_now() + j.retry_base, cancel_requested = false
  from jobs j
  where j.routed and j.source_kind = 'always_on' and t.job_id = j.job_id and t.dedupe_key = 'source'
    and t.state in ('completed', 'dead')
  returning t.task_id
)
select (select count(*) from missing) as started, (select count(*) from revived) as restarted

-- name: lock_routed_job
-- A deployed job, locked as the valve does: nobody else creates tasks for it by hand meanwhile.
select job_id from jobs where job_id = $1 and routed for no key update

-- name: backfill
-- Tasks for those of a job's scopes that need a backfill, and the state that each scope was in. A scope with an
-- unfinished task gets no second one. A dead task counts as failed until something is committed for its scope. If a
-- computed input lacks positions of a scope, the scope is skipped: its result would look complete but not be.
with computed as materialized (
  select n.generation_id, coverage_of(n.generation_id) as held
  from (select distinct generation_id from unnest($10::uuid[]) as n (generation_id)) n
  where not $8::boolean and exists (
    select 1 from job_outputs x join jobs p using (job_id)
    where x.generation_id = n.generation_id and p.activation = 'reactive' and p.runtime <> 'dispatcher')
  union all  -- of a source it is unknown what it should have, but not what it has dropped; so too if gaps are allowed
  select n.generation_id, '{(,)}'::int8multirange - dropped_of(g.dataset_uuid)
  from (select distinct generation_id from unnest($10::uuid[]) as n (generation_id)) n join generations g using (generation_id)
  where exists (select 1 from dropped_positions d where d.dataset_uuid = g.dataset_uuid)
    and ($8::boolean or exists (
      select 1 from job_outputs x join jobs p using (job_id)
      where x.generation_id = n.generation_id and p.activation = 'source'))
), short as materialized (  -- a window that reaches back beyond the first position reads nothing there
  select distinct n.ord from unnest($9::int[], $10::uuid[], $11::bigint[], $12::bigint[], $13::bigint[])
    as n (ord, generation_id, first, own, last)
  join computed c using (generation_id)
  where not c.held @> coverage_range(least(n.own, greatest(n.first, coalesce(lower(c.held), n.own))), n.last)
), asked as materialized (
  select a.*, coalesce('p:' || a.partition_key, 'c:' || a.range_start::text) as scope_key
  from unnest($3::text[], $4::bigint[], $5::bigint[]) with ordinality as a (partition_key, range_start, range_end, ord)
), waiting as materialized (
  select distinct scope_key from tasks where job_id = $1 and stage = 0
), dead as materialized (
  select scope_key, max(finished_at) as finished_at from tasks where job_id = $1 and stage = 3 group by scope_key
), standing as materialized (
  select a.*, coalesce(c.covered, false) as covered,
         w.scope_key is not null or exists (select 1 from tasks f where f.job_id = $1 and f.scope_key = a.scope_key
                                              and f.stage = 1 offset 0) as unfinished,
         d.scope_key is not null and coalesce(c.committed_at < d.finished_at, true) as died,
         s.ord is null as whole
  from asked a left join short s on s.ord = a.ord left join waiting w using (scope_key)
  left join dead d using (scope_key)
  left join lateral (
    select range_agg(numrange(c.range_start, c.range_end::numeric + 1))
             @> numrange(a.range_start, a.range_end::numeric + 1) as covered,
           max(c.committed_at) as committed_at
    from generation_cursors k join dataset_commits c using (generation_id)
    where k.generation_id = $2 and c.superseded_by is null
      and c.range_start >= greatest(a.range_start::numeric - k.widest, -9223372036854775808)::bigint
      and c.range_start <= a.range_end and c.range_end >= a.range_start
  ) c on true
), wanted as materialized (
  select * from standing
  where not unfinished and case $6::text when 'missing' then not covered when 'failed' then died else true end
), chosen as materialized (
  select * from wanted where whole
), made as (
  insert into tasks (task_id, job_id, state, priority, backfill, kind, partition_key, range_start, range_end,
                     created_at, ready_at)
  select uuid7(), $1, 'queued', 1, true, 'data', partition_key, range_start, range_end, tp_now(), tp_now()
  from chosen where $7::boolean order by ord
)
select (select count(*) from chosen) as created, count(*) filter (where unfinished) as unfinished,
       count(*) filter (where not covered) as missing, count(*) filter (where died and not unfinished) as failed,
       (select count(*) from wanted where not whole) as left_out
from standing

-- name: backfill_gaps
-- Positions of ranges that computed generations lack, by dataset, and the names of the first few of each range.
select d.dataset_id, lower(r) as first, coalesce(upper(r) - 1, 9223372036854775807) as last,
  (select jsonb_object_agg(p.name, p.position) from partition_names p
   where d.definition->'partitions'->>'by' = 'name' and p.org_id = d.org_id and p.position <@ r
     and p.position between lower(r) and lower(r) + $5) as names
from unnest($1::uuid[], $2::bigint[], $3::bigint[]) as n (generation_id, first, last)
join generations g using (generation_id) join datasets d using (dataset_uuid)
cross join lateral unnest(int8multirange(coverage_range(n.first, n.last)) - coverage_of(g.generation_id)) r
where exists (
  select 1 from job_outputs x join jobs p using (job_id)
  where x.generation_id = g.generation_id and p.activation = 'reactive' and p.runtime <> 'dispatcher')
order by d.dataset_id, r limit $4

-- name: create_for_everything
-- One task of a job for all positions.
insert into tasks (task_id, job_id, state, priority, kind, partition_key, range_start, range_end, created_at, ready_at)
values (uuid7(), $1, 'queued', 1, 'data', 'all', -9223372036854775808, 9223372036854775807, tp_now(), tp_now())
returning task_id

-- name: attempts_over
-- The attempts that have been unable to commit for longer than the grace period: replaced by another, reported, or of a
-- task that ended. If a task ended while its worker was silent, its attempt could still be reported late; with $4 it is
-- closed first, so that deleted files are never committed. A task of a known generation that is no longer stored ended
-- so long ago that it is history.
with asked as materialized (
  select a.task_id, a.attempt,
         coalesce(t.state = 'dead' and t.reported_attempt < t.attempt and a.attempt = t.attempt, false) as open
  from unnest($1::uuid[], $2::int[], $5::uuid[]) as a (task_id, attempt, generation_id) left join tasks t using (task_id)
  where t.task_id is null and exists (select 1 from generations g where g.generation_id = a.generation_id)
     or case when a.attempt < t.attempt then t.started_at
             when a.attempt = t.attempt and t.state in ('completed', 'canceled', 'dead')
               and not exists (select 1 from buffered_reports b where b.task_id = t.task_id and b.attempt = a.attempt offset 0)
               then t.finished_at  -- a dead letter can be replayed
             when a.attempt = t.reported_attempt and t.state = 'queued' then t.started_at
        end < tp_now() - $3::interval
), locked as materialized (
  select t.task_id from tasks t where t.task_id in (select task_id from asked where open) and $4::boolean
    and t.state = 'dead' order by t.task_id for no key update
), closed as (
  update tasks t set reported_attempt = t.attempt from locked l where t.task_id = l.task_id and t.state = 'dead'
  returning t.task_id
)
select task_id, attempt from asked where not open or not $4::boolean or task_id in (select task_id from closed)

-- name: cancel
-- Waiting tasks are canceled immediately; workers of running ones learn of it at their next heartbeat.
with chosen as materialized (
  select t.task_id from tasks t join jobs j using (job_id) join dags d using (dag_id) join orgs o using (org_id)
  where t.task_id = any($1::uuid[]) and o.slug = $2 and t.state in ('queued', 'dispatched', 'running')
  order by t.task_id for no key update of t
)
update tasks t set
  cancel_requested = true,
  state = case when t.state = 'running' then t.state else 'canceled' end,
  finished_at = case when t.state = 'running' then null else tp_now() end
from chosen c where t.task_id = c.task_id
returning t.task_id, t.state

-- name: cancel_retired
-- The same for a batch of unfinished tasks of jobs that receive no more events. Locked ones are skipped. The jobs are
-- locked too: a rollback that brings one back must see which of its tasks were canceled, or nobody would repeat them.
with found as materialized (
  select j.job_id, t.task_id from jobs j cross join lateral (
    (select task_id from tasks where job_id = j.job_id and stage = 0 limit $1)
    union all
    (select task_id from tasks where job_id = j.job_id and stage = 1 and not cancel_requested limit $1)
  ) t where not j.routed limit $1
), retired as materialized (
  select job_id from jobs where job_id = any(array(select job_id from found)) and not routed
  order by job_id for share skip locked
), chosen as materialized (
  select t.task_id from retired join found using (job_id) join tasks t using (task_id) where t.stage in (0, 1)
  order by t.task_id for no key update of t skip locked
)
update tasks t set
  cancel_requested = true,
  state = case when t.state = 'running' then t.state else 'canceled' end,
  finished_at = case when t.state = 'running' then null else tp_now() end
from chosen c where t.task_id = c.task_id
returning t.task_id, t.state

-- name: retry
-- A dead or canceled task gets a fresh set of attempts under its own id, if its job is still deployed. A pipeline's
-- does not: its execution is over, and the pipeline may be running again. Its dead letter goes: its rows are computed
-- again, and garbage collection may delete the files.
with chosen as materialized (
  select t.task_id from tasks t join jobs j using (job_id) join dags d using (dag_id) join orgs o using (org_id)
  where t.task_id = any($1::uuid[]) and o.slug = $2
    and t.state in ('dead', 'canceled') and j.routed and j.source_kind is distinct from 'pipeline'
  order by t.task_id for no key update of t
), letters as (
  delete from buffered_reports b using chosen c where b.task_id = c.task_id and b.failed_at is not null
)
update tasks t set state = 'queued', cancel_requested = false, finished_at = null, ready_at = tp_now(),
  granted_attempts = t.attempt, lease_token = null, acknowledged_at = null
from chosen c where t.task_id = c.task_id
returning t.task_id

-- name: why_unchanged
-- Why tasks could not be changed: their state, unless their job is what keeps an ended task from being retried.
select t.task_id, case when t.state not in ('dead', 'canceled') then t.state::text
  when j.source_kind = 'pipeline' then 'pipeline' when not j.routed then 'retired' else t.state::text end as why
from tasks t join jobs j using (job_id) join dags d using (dag_id) join orgs o using (org_id)
where t.task_id = any($1::uuid[]) and o.slug = $2

-- name: acknowledge
-- Marks dead tasks as acknowledged: they need no attention.
with chosen as materialized (
  select t.task_id from tasks t join jobs j using (job_id) join dags d using (dag_id) join orgs o using (org_id)
  where t.task_id = any($1::uuid[]) and o.slug = $2 and t.state = 'dead' and t.acknowledged_at is null
  order by t.task_id for no key update of t
)
update tasks t set acknowledged_at = tp_now(), acknowledged_by = $3
from chosen c where t.task_id = c.task_id
returning t.task_id

-- name: choose_unfinished
-- A batch of tasks of a DAG, a job or a range of positions that can be canceled. Always-on sources are included only if
-- their job is named.
select t.task_id
from dags d join orgs o using (org_id) join jobs j using (dag_id) cross join lateral (
  (select task_id from tasks where job_id = j.job_id and stage = 0
     and ($4::bigint is null or range_end >= $4) and ($5::bigint is null or range_start <= $5) limit $6)
  union all
  (select task_id from tasks where job_id = j.job_id and stage = 1 and not cancel_requested
     and ($4::bigint is null or range_end >= $4) and ($5::bigint is null or range_start <= $5) limit $6)
) t
where o.slug = $1 and d.name = $2 and ($3::text is null or j.name = $3)
  and ($3::text is not null or j.source_kind is distinct from 'always_on')
limit $6

-- name: choose_dead
-- The same for dead tasks that need attention; with $7 only those that can be retried.
select t.task_id
from dags d join orgs o using (org_id) join jobs j using (dag_id) cross join lateral (
  select task_id from dead_tasks x where x.job_id = j.job_id and x.acknowledged_at is null and x.standing = 'open'
    and ($4::bigint is null or x.range_end >= $4) and ($5::bigint is null or x.range_start <= $5)
  order by task_id limit $6
) t
where o.slug = $1 and d.name = $2 and ($3::text is null or j.name = $3)
  and (not $7::boolean or j.source_kind is distinct from 'pipeline')
limit $6

-- name: choose_canceled
-- The same for canceled tasks of deployed jobs, after $7: no index has them by job.
select t.task_id from tasks t join jobs j using (job_id) join dags d using (dag_id) join orgs o using (org_id)
where o.slug = $1 and d.name = $2 and ($3::text is null or j.name = $3) and t.state = 'canceled' and j.routed
  and j.source_kind is distinct from 'pipeline'
  and ($4::bigint is null or t.range_end >= $4) and ($5::bigint is null or t.range_start <= $5)
  and ($7::uuid is null or t.task_id > $7)
order by t.task_id limit $6
