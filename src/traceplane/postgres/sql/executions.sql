-- Executions of pipelines: launched by time, followed to their end.

-- name: scheduled
-- Active periodic pipelines, with the last time that each was launched for, and the database's clock.
select p.pipeline_id, p.schedule, p.active_since, tp_now() as now,
       (select max(e.scheduled_for) from executions e
        where e.pipeline_id = p.pipeline_id and e.scheduled_for is not null) as launched_for
from pipelines p
where p.trigger_mode = 'periodic' and p.is_active and p.deleted_at is null

-- name: launch_scheduled
-- Executions of pipelines that are due, with their tasks or Celery messages. Indexes exclude a pipeline that is running
-- or was already launched for this time; one whose job is not deployed is skipped too.
with due as materialized (
  select p.pipeline_id, d.scheduled_for, coalesce(p.config->>'target', 'task') as target, j.job_id, j.priority
  from unnest($1::uuid[], $2::timestamptz[]) as d (pipeline_id, scheduled_for)
  join pipelines p using (pipeline_id)
  left join dags g on g.org_id = p.org_id and g.name = p.config->>'dag'
  left join jobs j on j.dag_id = g.dag_id and j.name = p.config->>'job' and j.routed and not j.building
    and j.source_kind = 'pipeline'
  where p.trigger_mode = 'periodic' and p.is_active and p.deleted_at is null and p.active_since < d.scheduled_for
), launched as (
  insert into executions (pipeline_id, target, scheduled_for, created_at)
  select pipeline_id, target, scheduled_for, tp_now() from due
  where target = 'celery' or job_id is not null order by pipeline_id
  on conflict do nothing
  returning execution_id, pipeline_id, target
), made as (
  insert into tasks (task_id, job_id, state, priority, kind, created_at, ready_at)
  select l.execution_id, d.job_id, 'queued', d.priority, 'data', tp_now(), tp_now()
  from launched l join due d using (pipeline_id) where l.target = 'task'
), messages as (
  insert into celery_outbox (execution_id) select execution_id from launched where target = 'celery'
), told as (
  select pg_notify('traceplane_work', '') from launched limit 1
)
select (select count(*) from launched) as launched, (select count(*) from told) as told,
       (select count(*) from due where target = 'task' and job_id is null) as without_job

-- name: of_tasks
-- What the operator of a pipeline receives about its task's execution.
select e.execution_id, e.pipeline_id, p.name as pipeline, p.user_id, coalesce(p.config->'parameters', '{}') as parameters,
       e.signal, e.scheduled_for
from executions e join pipelines p using (pipeline_id) where e.execution_id = any($1::uuid[])

-- name: follow_tasks
-- Executions take the state of their tasks; one that ends frees its pipeline. If a task died while its worker was
-- silent, its attempt is closed for late reports, since the pipeline may run again.
with seen as materialized (
  select e.execution_id, t.state, t.stage, t.started_at, t.finished_at, t.error, t.attempt > t.reported_attempt as open
  from executions e join tasks t on t.task_id = e.execution_id
  where e.status in ('PENDING', 'RUNNING') and e.target = 'task'
    and (t.stage in (2, 3) or (t.state = 'running' and e.status = 'PENDING'))
  limit $1
  for no key update of e, t skip locked
), closed as (
  update tasks t set reported_attempt = t.attempt from seen s
  where t.task_id = s.execution_id and s.state = 'dead' and s.open
)
update executions e set
  status = case when s.state = 'running' then 'RUNNING' when s.state = 'completed' then 'COMPLETED' else 'FAILED' end,
  started_at = s.started_at,
  finished_at = case when s.state <> 'running' then s.finished_at end,
  error = case s.state when 'dead' then s.error
    when 'canceled' then jsonb_build_object('code', 'execution.canceled', 'message', 'its task was canceled') end
from seen s where e.execution_id = s.execution_id
returning e.status

-- name: overdue
-- Fails Celery executions that timed out, so that their pipelines may run again.
with late as materialized (
  select e.execution_id from executions e join pipelines p using (pipeline_id)
  where e.status in ('PENDING', 'RUNNING') and e.target = 'celery'
    and coalesce(e.started_at, e.created_at)
        < tp_now() - interval '1 second' * coalesce((p.config->>'timeout_seconds')::float8, 3600)
  limit $1 for no key update of e skip locked
), withdrawn as (
  delete from celery_outbox o using late l where o.execution_id = l.execution_id
)
update executions e set status = 'FAILED', finished_at = tp_now(),
  error = jsonb_build_object('code', 'execution.timed_out', 'message', 'no Celery worker finished it in time')
from late l where e.execution_id = l.execution_id
returning e.status

-- name: move
-- Moves an execution that Celery runs to another status, if it has one of the expected ones.
update executions e set status = $2::text, started_at = coalesce(e.started_at, tp_now()),
  finished_at = case when $2 in ('COMPLETED', 'FAILED') then tp_now() end, error = $4::jsonb
from pipelines p join orgs o using (org_id)
where e.execution_id = $1 and p.pipeline_id = e.pipeline_id and o.slug = $5 and e.target = 'celery' and e.status = any($3::text[])
returning e.execution_id

-- name: take_messages
-- Due messages, locked so that only one relay sends them, and whether their execution is still pending.
select o.execution_id, e.pipeline_id, e.signal, e.status = 'PENDING' as wanted
from celery_outbox o join executions e using (execution_id)
where o.ready_at <= tp_now() order by o.execution_id limit $1 for update of o skip locked

-- name: messages_sent
-- Deletes messages that were sent or are no longer needed.
delete from celery_outbox where execution_id = any($1::uuid[])

-- name: postpone_messages
-- Not sent: retried later, with a growing delay.
update celery_outbox set failures = failures + 1,
  ready_at = tp_now() + interval '0.2 second' * power(2, least(failures, 7))
where execution_id = any($1::uuid[])

-- name: list
-- Executions, newest first, but for those that run a hidden job. Planned for each call, since the best index depends on the filter.
select e.execution_id, e.pipeline_id, p.name as pipeline, p.user_id, e.target, e.status, e.signal_id, e.signal,
       e.scheduled_for, e.error, e.created_at, e.started_at, e.finished_at,
       coalesce(p.config->'parameters', '{}') as parameters, p.config->>'dag' as dag, p.config->>'job' as job
from executions e join pipelines p using (pipeline_id) join orgs o using (org_id)
where o.slug = $1 and ($2::uuid is null or e.execution_id = $2) and ($3::uuid is null or e.pipeline_id = $3)
  and ($4::text is null or e.status = $4) and ($5::uuid is null or e.execution_id < $5)
  and not exists (select 1 from unnest($7::text[], $8::text[]) h (dag, job) where h.dag = p.config->>'dag' and h.job = p.config->>'job')
order by e.execution_id desc limit $6
