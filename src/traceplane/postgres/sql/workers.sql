-- Workers that ask for tasks, and what jobs need of them.

-- name: see
-- A worker is there, what it offers, and whom it serves. Workers that were not seen for long are forgotten.
-- One with the same id that serves others is another worker.
with gone as (
  delete from workers w using (
    select worker_id, serves from workers
    where seen_at < tp_now() - $4::interval and (worker_id, serves) is distinct from ($1, $5::text[])
    order by worker_id, serves for update skip locked) as silent
  where w.worker_id = silent.worker_id and w.serves is not distinct from silent.serves
)
insert into workers (worker_id, runtime, offers, serves, seen_at) values ($1, $2, $3, $5, tp_now())
on conflict (worker_id, serves) do update
set runtime = excluded.runtime, offers = excluded.offers, seen_at = excluded.seen_at

-- name: leave
-- A worker stops.
delete from workers where worker_id = $1 and serves is not distinct from $2::text[]

-- name: there
-- Workers that were seen lately.
select worker_id, runtime, offers from workers where seen_at > tp_now() - $1::interval order by worker_id, serves

-- name: serve
-- Whether a worker of a runtime that was seen lately works for an organization.
select exists (select 1 from workers where runtime = $1 and seen_at > tp_now() - $3::interval
                 and (serves is null or $2::text = any(serves)))

-- name: required_sets
-- What jobs need of workers, each set once for a runtime and an organization.
select distinct j.runtime, j.requires, j.queue_suffix, o.slug as org
from jobs j join dags d using (dag_id) join orgs o using (org_id) where j.requires is not null

-- name: org_queues
-- The wake queues of organizations, and whether there may be tasks in them.
select slug, queue_suffix, exists (select 1 from dags d where d.org_id = o.org_id) as in_use from orgs o order by slug
