-- Facts about pipelines that are not launched.

-- name: counts
-- Pipelines that wait for signals, and what prevents some of them from being launched.
select count(*) as signal_pipelines,
       count(*) filter (where p.is_active) as active,
       count(*) filter (where p.is_active and cardinality(coalesce(p.scanner_tickers, l.tickers)) = 0) as without_tickers,
       count(*) filter (where p.is_active and p.config->>'target' = 'celery') as by_celery,
       (select count(*) from celery_outbox) as celery_waiting
from pipelines p left join scanner_lists l using (scanner_list_id)
where p.trigger_mode = 'signal' and p.deleted_at is null

-- name: without_job
-- Some active pipelines whose job is not deployed.
select p.name, p.config->>'dag' as dag, p.config->>'job' as job
from pipelines p
where p.trigger_mode = 'signal' and p.deleted_at is null and p.is_active
  and coalesce(p.config->>'target', 'task') = 'task'
  and not exists (select 1 from dags d join jobs j using (dag_id)
                  where d.org_id = p.org_id and d.name = p.config->>'dag' and j.name = p.config->>'job'
                    and j.routed and not j.building and j.source_kind = 'pipeline' offset 0)
order by p.pipeline_id limit $1

-- name: running
-- The number of running executions, and the one running longest.
select count(*) over () as running, e.execution_id, p.name as pipeline, e.status, e.target, t.state as task_state,
       extract(epoch from tp_now() - e.created_at)::float8 as seconds
from executions e join pipelines p using (pipeline_id) left join tasks t on t.task_id = e.execution_id
where e.status in ('PENDING', 'RUNNING') order by e.created_at limit 1

-- name: offsets
-- How far a group has consumed a topic, and when it last did.
select partition, next_offset, extract(epoch from tp_now() - consumed_at)::float8 as seconds
from trigger_offsets where consumer_group = $1 and topic = $2 order by partition

-- name: watching
-- Active pipelines that watch one of these tickers, in whatever case they are written.
select p.pipeline_id, p.name, coalesce(p.scanner_tickers, l.tickers) as tickers,
       p.signal_subscriptions as subscriptions, p.rules
from pipelines p left join scanner_lists l using (scanner_list_id)
where p.trigger_mode = 'signal' and p.deleted_at is null and p.is_active
  and exists (select 1 from unnest(coalesce(p.scanner_tickers, l.tickers)) t where upper(t) = any($1::text[]))
order by p.pipeline_id limit $2
