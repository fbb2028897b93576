-- Side effects waiting to leave the database.

-- name: move_to_local_queue
-- The local queue is in this database, so its wake-ups move there in one statement.
with due as materialized (
  select outbox_id from outbox where runtime = any($1::text[]) and ready_at <= tp_now()
  order by outbox_id limit $3 for update skip locked
), moved as (
  delete from outbox o where o.outbox_id = any(array(select outbox_id from due)) returning o.runtime, o.queue_suffix, o.task_ids
), sent as (
  insert into wake_messages (queue, task_id, visible_at)
  select l.queue || m.queue_suffix, t.task_id, tp_now()
  from moved m join unnest($1::text[], $2::text[]) as l (runtime, queue) using (runtime), unnest(m.task_ids) as t (task_id)
  returning queue
)
select queue, count(*) as messages, pg_notify('traceplane_wake', queue) from sent group by queue

-- name: take
-- The oldest rows that are due, locked so that only one dispatcher relays them.
select outbox_id, runtime, queue_suffix, task_ids, failures, extract(epoch from tp_now() - created_at)::float8 as age_seconds
from outbox where runtime <> all($2::text[]) and ready_at <= tp_now()
order by outbox_id limit $1 for update skip locked

-- name: due_runtimes
-- Runtimes with due rows; most passes of the relay find none.
select distinct runtime from outbox where ready_at <= tp_now()

-- name: done
-- Deletes rows that were sent.
delete from outbox where outbox_id = any($1::bigint[])

-- name: postpone
-- Not sent: retried later, with a growing delay.
update outbox set failures = failures + 1,
  ready_at = tp_now() + interval '0.2 second' * power(2, least(failures, 7))
where outbox_id = any($1::bigint[])

-- name: lag
-- How many seconds the oldest row has waited.
select coalesce(extract(epoch from tp_now() - min(created_at)), 0)::float8 from outbox

-- name: lag_of_org
-- The same for rows with tasks of one organization.
select coalesce(extract(epoch from tp_now() - min(o.created_at)), 0)::float8 from outbox o
where exists (select 1 from unnest(o.task_ids) as w (task_id) join tasks t using (task_id) join jobs j using (job_id)
              join dags d using (dag_id) join orgs g using (org_id) where g.slug = $1 offset 0)
