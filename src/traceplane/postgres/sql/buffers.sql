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

-- name: handed_over
-- Which of these attempts have completed already, and wait for their sink or could not be written.
select r.task_id from buffered_reports r join unnest($1::uuid[], $2::int[]) as a (task_id, attempt) using (task_id, attempt)

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
-- The oldest completions for one dataset besides those in hand ($4), while this sink has its lease. The lease only saves
-- two sinks from doing the same: it is the fence of its task that lets a completion count once.
select r.task_id, r.attempt, r.lease_token, r.report, r.tries
from buffered_reports r
where r.generation_id = $1 and r.failed_at is null and r.ready_at <= tp_now() and r.task_id <> all($4::uuid[])
  and exists (select 1 from sink_leases l where l.generation_id = $1 and l.holder = $2 and l.expires_at > tp_now())
order by r.report_id limit $3

-- name: settle
-- Reports that were committed, or that no longer count, leave the buffer; those that can never be written stay as dead
-- letters. A sink may come late: what a later attempt has handed over since is not its own, nor is the dead letter that
-- another sink has made of the same report.
with over as materialized (
  select * from unnest($1::uuid[], $2::int[]) as o (task_id, attempt)
), gone as (
  delete from buffered_reports r using over o
  where r.task_id = o.task_id and (r.attempt < o.attempt or r.attempt = o.attempt and r.failed_at is null)
), batches as (
  delete from buffered_batches b using over o where b.task_id = o.task_id and b.attempt <= o.attempt
)
update buffered_reports r set failure = d.failure, failed_at = tp_now()
from unnest($3::uuid[], $4::int[], $5::jsonb[]) as d (task_id, attempt, failure)
where r.task_id = d.task_id and r.attempt = d.attempt

-- name: postpone
-- Reports that could not be written this time; the pause doubles.
update buffered_reports r set tries = r.tries + 1, failure = p.failure,
  ready_at = tp_now() + least(interval '5 minutes', interval '1 second' * power(2, least(r.tries, 20))) * (0.5 + random() / 2)
from unnest($1::uuid[], $2::jsonb[]) as p (task_id, failure) where r.task_id = p.task_id

-- name: letters
-- Dead letters for people, oldest first. What a retried task left behind is none.
select b.report_id, t.task_id, d.name as dag, j.name as job, x.dataset_id, t.partition_key, t.range_start,
       t.attempt, b.tries + 1 as tries, b.created_at, b.failed_at, b.failure as error, z.standing, s.rows, s.bytes, s.files
from buffered_reports b join tasks t using (task_id) join jobs j using (job_id) join dags d using (dag_id)
join orgs o using (org_id)
join generations g on g.generation_id = b.generation_id join datasets x on x.dataset_uuid = g.dataset_uuid
cross join lateral (
  select least(coalesce(sum((u->>'row_count')::numeric), 0), 9223372036854775807)::bigint as rows,
         least(coalesce(sum((u->>'bytes')::numeric), 0), 9223372036854775807)::bigint as bytes,
         coalesce(sum(jsonb_array_length(u->'files')), 0)::bigint as files
  from jsonb_array_elements(b.report->'outputs') u
) s
left join lateral (select standing from dead_tasks where task_id = t.task_id offset 0) z on true
where o.slug = $1 and b.failed_at is not null and t.state = 'dead' and t.attempt = b.attempt
  and ($2::text is null or d.name = $2) and ($3::text is null or j.name = $3) and ($4::text is null or x.dataset_id = $4)
  and ($5::uuid is null or t.task_id = $5) and ($6::bigint is null or b.report_id > $6) and t.job_id <> all($7::uuid[])
order by b.report_id limit $8

-- name: letter_files
-- The staged files of a dead letter.
select x.dataset_id, f->>'path' as path, (f->>'rows')::bigint as rows, (f->>'bytes')::bigint as bytes
from buffered_reports b cross join lateral jsonb_array_elements(b.report->'outputs') u
cross join lateral jsonb_array_elements(u->'files') f
join generations g on g.generation_id = (u->>'generation_id')::uuid join datasets x on x.dataset_uuid = g.dataset_uuid
where b.task_id = $1 and b.failed_at is not null order by (u->>'output_index')::int, path limit $2

-- name: letter_counts
-- How many dead letters each dataset of an organization has that wait for somebody.
select x.dataset_id, count(*) as letters
from buffered_reports b join tasks t on t.task_id = b.task_id and t.attempt = b.attempt and t.state = 'dead'
join dead_tasks z on z.task_id = t.task_id and z.standing = 'open'
join generations g on g.generation_id = b.generation_id join datasets x on x.dataset_uuid = g.dataset_uuid
join orgs o using (org_id)
where o.slug = $1 and b.failed_at is not null group by x.dataset_id

-- name: choose_letters
-- A batch of dead letters of a DAG, a job or a range of positions, after $7; with $8 only those of tasks that are open.
select t.task_id
from buffered_reports b join tasks t using (task_id) join jobs j using (job_id) join dags d using (dag_id)
join orgs o using (org_id)
where o.slug = $1 and d.name = $2 and ($3::text is null or j.name = $3) and b.failed_at is not null
  and t.state = 'dead' and t.attempt = b.attempt
  and ($4::bigint is null or t.range_end >= $4) and ($5::bigint is null or t.range_start <= $5)
  and ($7::uuid is null or t.task_id > $7)
  and (not $8::boolean or (select standing from dead_tasks z where z.task_id = t.task_id) = 'open')
order by t.task_id limit $6

-- name: lock_letters
-- Tasks whose letters are to be changed, if they have any, locked until the transaction ends.
select t.task_id from tasks t join jobs j using (job_id) join dags d using (dag_id) join orgs o using (org_id)
where t.task_id = any($1::uuid[]) and o.slug = $2
  and exists (select 1 from buffered_reports b where b.task_id = t.task_id and b.failed_at is not null)
order by t.task_id for no key update of t

-- name: why_not_replayed
-- Why letters cannot be replayed; null if they can. Their rows are as old as their attempt: nothing that was computed
-- since may be overwritten, nor look as if it were done because an older task committed after it.
with asked as materialized (
  select t.*, j.source_kind, j.definition->>'update_strategy' is distinct from 'append' as replaces
  from tasks t join jobs j using (job_id) join dags d using (dag_id) join orgs o using (org_id)
  where t.task_id = any($1::uuid[]) and o.slug = $2
), newest as materialized (
  select distinct on (job_id, scope_key) job_id, scope_key, task_id
  from tasks where job_id = any(array(select job_id from asked)) and stage = 3 and acknowledged_at is null
  order by job_id, scope_key, started_at desc nulls last, task_id desc
)
select t.task_id, case
    when t.state <> 'dead' then t.state::text
    when b.task_id is null then 'no_letter'
    when t.source_kind = 'pipeline' then 'pipeline'
    when z.standing <> 'open' then z.standing
    when n.task_id is null then 'not_newest'
    when exists (select 1 from tasks r where r.job_id = t.job_id and r.scope_key = t.scope_key and r.stage = 1 offset 0) then 'busy'
    when t.replaces and exists (
      select 1 from jsonb_array_elements(b.report->'outputs') u
      join generation_cursors k on k.generation_id = (u->>'generation_id')::uuid
      join dataset_commits c on c.generation_id = k.generation_id
      where c.superseded_by is null and c.committed_at > t.started_at
        and c.range_start >= greatest((u->>'start')::numeric - k.widest, -9223372036854775808)::bigint
        and c.range_start <= (u->>'end')::bigint and c.range_end >= (u->>'start')::bigint offset 0) then 'superseded'
  end as why
from asked t
left join buffered_reports b on b.task_id = t.task_id and b.attempt = t.attempt and b.lease_token = t.lease_token
  and b.failed_at is not null
left join newest n on n.job_id = t.job_id and n.scope_key = t.scope_key and n.task_id = t.task_id
left join lateral (select standing from dead_tasks where task_id = t.task_id offset 0) z on true

-- name: replay
-- Dead letters wait again, behind all others; their attempts run again, as if they were handed over now. Their scopes
-- become busy in the order in which `accept` inserts tasks, so the two cannot deadlock.
with again as (
  update buffered_reports b set report_id = default, created_at = tp_now(), ready_at = tp_now(), tries = 0,
    failure = null, failed_at = null
  from (select task_id from buffered_reports where task_id = any($1::uuid[]) order by report_id offset 0) g
  where b.task_id = g.task_id and b.failed_at is not null
  returning b.task_id
)
update tasks t set state = 'running', reported_attempt = t.attempt - 1, lease_expires_at = '9999-01-01Z',
  worker_id = 'sink', finished_at = null, cancel_requested = false
from (select task_id from again join tasks using (task_id)
      order by job_id, partition_key collate "C", range_start offset 0) g where t.task_id = g.task_id
returning t.task_id, pg_notify('traceplane_buffer', '')

-- name: drop
-- Dead letters go. Their tasks stay dead, and somebody has seen to them.
with gone as (
  delete from buffered_reports b using tasks t
  where b.task_id = any($1::uuid[]) and b.failed_at is not null
    and t.task_id = b.task_id and t.state = 'dead' and t.attempt = b.attempt
  returning b.task_id
), batches as (
  delete from buffered_batches where task_id in (select task_id from gone)
)
update tasks t set acknowledged_at = coalesce(t.acknowledged_at, tp_now()),
  acknowledged_by = case when t.acknowledged_at is null then $2 else t.acknowledged_by end
from (select task_id from gone order by task_id offset 0) g where t.task_id = g.task_id
returning t.task_id
