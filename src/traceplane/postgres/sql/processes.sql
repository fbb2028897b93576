-- Processes of the platform, and workers, as they were last seen.

-- name: see
-- A process is there. One that was not seen for long is forgotten; so is a silent one of its kind on its host, whose place
-- it has taken.
with gone as (
  delete from processes p using (
    select process_id from processes
    where process_id <> $1 and (seen_at < tp_now() - $6::interval
      or (kind = $2 and host = $3 and seen_at < tp_now() - $7::interval))
    order by process_id for update skip locked) as silent
  where p.process_id = silent.process_id
)
insert into processes (process_id, kind, host, pid, version, started_at, seen_at)
values ($1, $2, $3, $4, $5, tp_now(), tp_now())
on conflict (process_id) do update set seen_at = excluded.seen_at

-- name: leave
-- A process stops.
delete from processes where process_id = $1

-- name: seen
-- All that were seen; of workers, those that serve the organization whose transaction it is.
select kind, host || ':' || pid as name, version, null as runtime, started_at, seen_at,
       extract(epoch from tp_now() - seen_at)::float8 as silent_seconds
from processes
union all
select 'worker', worker_id, null, runtime, null, seen_at, extract(epoch from tp_now() - seen_at)::float8 from workers
order by kind, name
