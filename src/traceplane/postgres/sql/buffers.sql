-- Buffered datasets: what attempts have published, completed attempts that wait for a sink, and dead letters.

-- name: publish
-- Batches of attempts that hold their tasks. A batch that was published before stays as it is.
insert into buffered_batches (task_id, attempt, batch, output)
select b.* from unnest($1::uuid[], $2::int[], $3::int[], $4::jsonb[]) as b (task_id, attempt, batch, output)
order by b.task_id, b.attempt, b.batch
on conflict do nothing

-- name: published
-- What attempts have published, in the order of their batches.
select b.task_id, b.output from buffered_batches b
join unnest($1::uuid[], $2::int[]) as a (task_id, attempt) using (task_id, attempt)
order by b.task_id, b.batch

-- name: hand_over
-- Completed attempts wait for their sink; their leases do not expire meanwhile. A dead letter of an earlier attempt is
-- replaced.
with given as materialized (
  select * from unnest($1::uuid[], $2::int[], $3::uuid[], $4::uuid[], $5::jsonb[])
    with ordinality as g (task_id, attempt, lease_token, generation_id, report, ord)
), kept as (
  insert into buffered_reports (task_id, attempt, lease_token, generation_id, report)
  select task_id, attempt, lease_token, generation_id, report from given order by ord
  on conflict (task_id) do update set attempt = excluded.attempt, lease_token = excluded.lease_token,
    generation_id = excluded.generation_id, report = excluded.report, created_at = tp_now(), ready_at = tp_now(),
    tries = 0, failure = null, failed_at = null, report_id = default
  where buffered_reports.attempt < excluded.attempt
), held as (
  update tasks t set lease_expires_at = '9999-01-01Z', worker_id = 'sink'
  from (select task_id from given order by task_id offset 0) g where t.task_id = g.task_id
)
select pg_notify('traceplane_buffer', '')

-- name: lease
-- The datasets with something to write that no other sink works on, leased to this one. They are found by skipping
-- through the index rather than reading every waiting report.
with recursive waiting as (
  (select generation_id from buffered_reports where failed_at is null order by generation_id limit 1)
  union all
  select (select r.generation_id from buffered_reports r where r.failed_at is null and r.generation_id > w.generation_id
          order by r.generation_id limit 1)
  from waiting w where w.generation_id is not null
)
insert into sink_leases as l (generation_id, holder, expires_at)
select generation_id, $1, tp_now() + $2::interval from waiting where generation_id is not null order by generation_id
on conflict (generation_id) do update set holder = excluded.holder, expires_at = excluded.expires_at
where l.holder = excluded.holder or l.expires_at < tp_now()
returning generation_id

-- name: release
-- The leases of a sink that stops.
delete from sink_leases where holder = $1

-- name: waiting
-- The oldest completions for one dataset, while this sink has its lease. The lease only saves two sinks from doing the
-- same: it is the fence of its task that lets a completion count once.
select r.task_id, r.attempt, r.lease_token, r.report, r.tries
from buffered_reports r
where r.generation_id = $1 and r.failed_at is null and r.ready_at <= tp_now()
  and exists (select 1 from sink_leases l where l.generation_id = $1 and l.holder = $2 and l.expires_at > tp_now())
order by r.report_id limit $3

-- name: settle
-- Reports that were committed, or that no longer count, leave the buffer; those that can never be written stay as dead
-- letters.
with gone as (
  delete from buffered_reports where task_id = any($1::uuid[]) returning task_id
), batches as (
  delete from buffered_batches where task_id = any($1::uuid[])
)
update buffered_reports r set failure = d.failure, failed_at = tp_now()
from unnest($2::uuid[], $3::jsonb[]) as d (task_id, failure) where r.task_id = d.task_id

-- name: postpone
-- Reports that could not be written this time; the pause doubles.
update buffered_reports r set tries = r.tries + 1, failure = p.failure,
  ready_at = tp_now() + least(interval '5 minutes', interval '1 second' * power(2, least(r.tries, 20))) * (0.5 + random() / 2)
from unnest($1::uuid[], $2::jsonb[]) as p (task_id, failure) where r.task_id = p.task_id
