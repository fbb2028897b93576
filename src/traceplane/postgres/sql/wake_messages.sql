-- The local wake-up queue: at least once, unordered, visibility timeout, dead letters after a few receives.

-- name: send
-- One message per task; listeners of the queue are woken at commit.
with sent as (
  insert into wake_messages (queue, task_id, visible_at) select $1, task_id, tp_now() from unnest($2::uuid[]) as s (task_id)
)
select pg_notify('traceplane_wake', $1)

-- name: receive
-- Takes visible messages after a given one and hides them for a while.
with picked as materialized (
  select message_id from wake_messages
  where queue = $1 and message_id > $5 and visible_at <= tp_now() and receives < $4
  order by message_id limit $2 for update skip locked
)
update wake_messages m set visible_at = tp_now() + $3::interval, receives = m.receives + 1
from picked p where m.queue = $1 and m.message_id = p.message_id
returning m.message_id, m.task_id, m.receives

-- name: bury
-- Messages received too often go to the dead letters, where people can see them.
with dead as (
  delete from wake_messages where queue = $1 and visible_at <= tp_now() and receives >= $2
  returning message_id, queue, task_id, receives
)
insert into wake_dead_letters (message_id, queue, task_id, receives) select * from dead
returning message_id

-- name: delete
-- Deletes messages that are done.
delete from wake_messages where queue = $1 and message_id = any($2::bigint[])

-- name: extend
-- Hides messages for longer while their task runs.
update wake_messages set visible_at = tp_now() + $3::interval where queue = $1 and message_id = any($2::bigint[])
returning message_id

-- name: release
-- Makes messages visible immediately, for another receiver.
update wake_messages set visible_at = tp_now(), receives = greatest(receives - 1, 0)
where queue = $1 and message_id = any($2::bigint[])

-- name: depth
-- Messages waiting and hidden, and buried ones.
select (select count(*) from wake_messages where queue = $1 and visible_at <= tp_now()) as visible,
       (select count(*) from wake_messages where queue = $1 and visible_at > tp_now()) as hidden,
       (select count(*) from wake_dead_letters where queue = $1) as dead
