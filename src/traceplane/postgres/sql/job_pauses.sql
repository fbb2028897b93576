-- Jobs that somebody paused: their tasks are kept, and none is dispatched. A pause takes its locks in the order jobs,
-- tasks, events, as deploys and the valve do.

-- name: lock_jobs
-- The deployed jobs of a name, also one that is being built, locked as the valve does: nobody dispatches their tasks
-- meanwhile.
select j.job_id, coalesce(j.source_kind in ('manual', 'webhook'), false) as relays_only, j.definition->>'generated_for' as generated_for
from jobs j join dags d using (dag_id) join orgs o using (org_id)
where o.slug = $1 and d.name = $2 and j.name = $3 and j.routed
order by j.job_id for no key update of j

-- name: pause
-- Pauses a job; one that is paused stays as it is.
insert into job_pauses (dag_id, job, paused_by, reason, since)
select d.dag_id, $3, $4, $5, tp_now() from dags d join orgs o using (org_id) where o.slug = $1 and d.name = $2
on conflict (dag_id, job) do nothing
returning job

-- name: stop_sources
-- Runs of always-on sources end at their next heartbeat.
update tasks set cancel_requested = true
where job_id = any($1::uuid[]) and stage = 1 and dedupe_key = 'source' and state = 'running'

-- name: take_back
-- Tasks that no worker has claimed are queued again. A locked one is being claimed or reported, so it is running.
with unclaimed as materialized (
  select task_id from tasks where job_id = any($1::uuid[]) and stage = 1 and state = 'dispatched'
  order by task_id for no key update skip locked
)
update tasks t set state = 'queued', dispatched_at = null from unclaimed u where t.task_id = u.task_id

-- name: resume
-- Ends the pause of a job; returns it.
delete from job_pauses p using dags d, orgs o
where p.dag_id = d.dag_id and d.org_id = o.org_id and o.slug = $1 and d.name = $2 and p.job = $3
returning d.name as dag, p.job, p.paused_by, p.reason, p.since, 0 as waiting

-- name: start_sources
-- Runs of always-on sources that were stopped start again; those that have yet to stop are asked no more.
update tasks set cancel_requested = false, state = case when state = 'canceled' then 'queued' else state end,
  finished_at = case when state = 'canceled' then null else finished_at end,
  ready_at = case when state = 'canceled' then tp_now() else ready_at end,
  granted_attempts = case when state = 'canceled' then attempt else granted_attempts end,
  lease_token = case when state = 'canceled' then null else lease_token end
where job_id = any($1::uuid[]) and dedupe_key = 'source' and (state = 'canceled' or cancel_requested)

-- name: of_org
-- The paused jobs of an organization that are deployed, each with the number of its tasks that wait, counted up to $4.
select d.name as dag, p.job, p.paused_by, p.reason, p.since, w.waiting
from job_pauses p join dags d using (dag_id) join orgs o using (org_id)
cross join lateral (
  select count(*) as waiting from (
    select 1 from jobs j join tasks t using (job_id)
    where j.dag_id = p.dag_id and j.name = p.job and j.routed and t.stage = 0 limit $4::int
  ) q
) w
where o.slug = $1 and ($2::text is null or d.name = $2) and ($3::text is null or p.job = $3)
  and exists (select 1 from jobs j where j.dag_id = p.dag_id and j.name = p.job and j.routed)
order by d.name, p.job

-- name: forget
-- Ends all pauses of a DAG that is deleted.
delete from job_pauses where dag_id = $1
