-- Workers that ask for tasks, and what jobs need of them.

-- name: see
-- A worker is there, and what it offers. Workers that were not seen for long are forgotten.
with gone as (
  delete from workers where worker_id in (
    select worker_id from workers where seen_at < tp_now() - $4::interval and worker_id <> $1
    order by worker_id for update skip locked)
)
insert into workers (worker_id, runtime, offers, seen_at) values ($1, $2, $3, tp_now())
on conflict (worker_id) do update set runtime = excluded.runtime, offers = excluded.offers, seen_at = excluded.seen_at

-- name: leave
-- A worker stops.
delete from workers where worker_id = $1

-- name: there
-- Workers that were seen lately.
select worker_id, runtime, offers from workers where seen_at > tp_now() - $1::interval order by worker_id

-- name: required_sets
-- What jobs need of workers, each set once for a runtime.
select distinct runtime, requires, queue_suffix from jobs where requires is not null
