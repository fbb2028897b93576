-- Pipelines and lists of tickers, as their owners write them.

-- name: add
-- A new pipeline; no row if the user has one of this name.
insert into pipelines (org_id, user_id, name, trigger_mode, scanner_tickers, scanner_list_id, signal_subscriptions, rules,
                       schedule, is_active, config, launches_per_hour)
select org_id, $2::text, $3::text, $4::text, $5::text[], $6::uuid, $7::jsonb, $8::jsonb, $9::text, $10::boolean,
       $11::jsonb, $12::int
from orgs where slug = $1
on conflict (org_id, user_id, name) where deleted_at is null do nothing
returning pipeline_id

-- name: lock
-- One pipeline, locked until the transaction ends.
select p.pipeline_id, p.user_id, p.name, p.trigger_mode, p.scanner_tickers, l.name as scanner_list,
       p.signal_subscriptions, p.rules, p.schedule, p.is_active, p.config, p.launches_per_hour, p.created_at
from pipelines p join orgs o using (org_id) left join scanner_lists l using (scanner_list_id)
where p.pipeline_id = $2 and o.slug = $1 and p.deleted_at is null
for update of p

-- name: name_taken
-- Whether another pipeline of the user has this name.
select exists (select 1 from pipelines p join orgs o using (org_id)
               where o.slug = $1 and p.user_id = $2 and p.name = $3 and p.deleted_at is null and p.pipeline_id <> $4)

-- name: change
-- Replaces all fields that its owner sets.
update pipelines set
  name = $2::text, scanner_tickers = $3::text[], scanner_list_id = $4::uuid, signal_subscriptions = $5::jsonb,
  rules = $6::jsonb, schedule = $7::text, config = $9::jsonb, launches_per_hour = $10::int,
  active_since = case when ($8::boolean and not is_active) or schedule is distinct from $7 then tp_now()
                      else active_since end,
  is_active = $8::boolean, trigger_mode = $11::text, changed_in = pg_current_xact_id()
where pipeline_id = $1 and org_id = (select org_id from orgs where slug = $12)

-- name: remove
-- A deleted pipeline keeps its executions, and its own copy of a list's tickers, so that the list can be deleted too.
update pipelines p set deleted_at = tp_now(), changed_in = pg_current_xact_id(),
  scanner_tickers = case when p.trigger_mode = 'signal'
    then coalesce(p.scanner_tickers, (select l.tickers from scanner_lists l where l.scanner_list_id = p.scanner_list_id)) end,
  scanner_list_id = null
where p.pipeline_id = $1 and p.org_id = (select org_id from orgs where slug = $2)

-- name: list
-- Pipelines in the order of their creation, but for those that run a hidden job, with the current execution of each.
select p.pipeline_id, p.user_id, p.name, p.trigger_mode, p.scanner_tickers, l.name as scanner_list,
       p.signal_subscriptions, p.rules, p.schedule, p.is_active, p.config, p.launches_per_hour, p.created_at,
       (select e.execution_id from executions e
        where e.pipeline_id = p.pipeline_id and e.status in ('PENDING', 'RUNNING')) as running
from pipelines p join orgs o using (org_id) left join scanner_lists l using (scanner_list_id)
where o.slug = $1 and p.deleted_at is null
  and ($2::uuid is null or p.pipeline_id = $2) and ($3::uuid is null or p.pipeline_id > $3)
  and ($4::text is null or p.user_id = $4) and ($5::text is null or p.trigger_mode = $5)
  and ($6::boolean is null or p.is_active = $6)
  and ($7::text is null or $7 = any(coalesce(p.scanner_tickers, l.tickers)))
  and not exists (select 1 from unnest($9::text[], $10::text[]) h (dag, job) where h.dag = p.config->>'dag' and h.job = p.config->>'job')
order by p.pipeline_id limit $8

-- name: job_state
-- Whether a job can be run by pipelines: its source kind, or null if there is no such job.
select coalesce(j.source_kind, 'none') from dags d join orgs o using (org_id) join jobs j using (dag_id)
where o.slug = $1 and d.name = $2 and j.name = $3 and j.routed and not j.building

-- name: lists
-- Lists of tickers, and how many pipelines use each.
select l.name, l.tickers,
       (select count(*) from pipelines p where p.scanner_list_id = l.scanner_list_id) as pipelines
from scanner_lists l join orgs o using (org_id)
where o.slug = $1 and ($2::text is null or l.name = $2) order by l.name

-- name: set_list
-- Creates or replaces a list of tickers.
insert into scanner_lists (org_id, name, tickers) select org_id, $2::text, $3::text[] from orgs where slug = $1
on conflict (org_id, name) do update set tickers = excluded.tickers, changed_in = pg_current_xact_id()

-- name: list_id
-- A list by name, which cannot be deleted until the transaction ends.
select l.scanner_list_id from scanner_lists l join orgs o using (org_id)
where o.slug = $1 and l.name = $2 for key share of l

-- name: lock_list
-- A list by name, which no pipeline can start to use until the transaction ends.
select l.scanner_list_id from scanner_lists l join orgs o using (org_id)
where o.slug = $1 and l.name = $2 for update of l

-- name: remove_list
-- Deletes a list that no pipeline uses.
delete from scanner_lists l where l.scanner_list_id = $1
  and not exists (select 1 from pipelines p where p.scanner_list_id = l.scanner_list_id) returning scanner_list_id

-- name: user_limits
-- The launch limits of users who have one.
select u.user_id, u.launches_per_hour from trigger_user_limits u join orgs o using (org_id) where o.slug = $1
order by u.user_id

-- name: set_user_limit
-- Sets a user's limit; null removes it.
with gone as (
  delete from trigger_user_limits u using orgs o
  where o.org_id = u.org_id and o.slug = $1 and u.user_id = $2 and $3::int is null
)
insert into trigger_user_limits (org_id, user_id, launches_per_hour)
select org_id, $2::text, $3::int from orgs where slug = $1 and $3 is not null
on conflict (org_id, user_id) do update set launches_per_hour = excluded.launches_per_hour
