-- How attempts ended that did not complete.

-- name: keep
-- Attempts that end now, before their tasks are changed; those without a number are the current ones of their tasks. A
-- task that nobody claimed, as those of the dispatcher, begins and fails at once. Of each task, the last $5 are kept: a
-- source that is always on fails for as long as nobody mends it.
with ended as materialized (
  select t.task_id, coalesce(u.attempt, t.attempt) as attempt, t.worker_id,
         case when t.state = 'queued' and coalesce(u.attempt, t.attempt) > t.attempt then tp_now() else coalesce(t.started_at, tp_now()) end as started_at,
         u.outcome, u.code
  from unnest($1::uuid[], $2::int[], $3::text[], $4::text[]) as u (task_id, attempt, outcome, code) join tasks t using (task_id)
), older as (
  delete from task_attempts a using ended e where a.task_id = e.task_id and a.attempt <= e.attempt - $5::int
)
insert into task_attempts (task_id, attempt, worker_id, started_at, ended_at, outcome, code)
select task_id, attempt, worker_id, started_at, tp_now(), outcome, code from ended order by task_id
on conflict (task_id, attempt) do update set ended_at = excluded.ended_at, outcome = excluded.outcome, code = excluded.code

-- name: of_task
-- Those of one task of an organization, in order.
select a.attempt, a.outcome, a.started_at, a.ended_at, a.worker_id, a.code
from task_attempts a join tasks t using (task_id) join jobs j using (job_id) join dags d using (dag_id) join orgs o using (org_id)
where a.task_id = $1 and o.slug = $2 order by a.attempt
