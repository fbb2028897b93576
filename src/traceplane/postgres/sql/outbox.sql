-- Side effects waiting to leave the database.

-- name: take
-- The oldest rows that are due, locked so that only one dispatcher relays them.
select outbox_id, runtime, task_ids, failures, extract(epoch from tp_now() - created_at)::float8 as age_seconds
from outbox where ready_at <= tp_now() order by outbox_id limit $1 for update skip locked

-- name: done
-- Sent: the row has served.
delete from outbox where outbox_id = any($1::bigint[])

-- name: postpone
-- Not sent: tried again later, a little later each time.
update outbox set failures = failures + 1,
  ready_at = tp_now() + interval '0.2 second' * power(2, least(failures, 7))
where outbox_id = any($1::bigint[])

-- name: lag
-- Seconds the oldest waiting row has waited.
select coalesce(extract(epoch from tp_now() - min(created_at)), 0)::float8 from outbox
