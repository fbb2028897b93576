-- What a version had found before it served may still be unsent when another one replaces it: the one that serves then
-- sends it if it finds it too.

-- Found by a version that has served since: whichever version serves sends it, or withdraws it.
alter table alert_events add column released boolean not null default false;
update alert_events e set released = true
from dags d join jobs j using (dag_id) join job_inputs i using (job_id)
where d.org_id = e.org_id and d.name = e.dag and j.operator = 'alert_route' and j.routed and not j.building
  and i.generation_id = any(e.generations) and e.suppressed = 'building' and e.retracted_at is null;

-- Positions at which something is to be compared once more, although nothing has happened there.
alter table alert_handovers add column history boolean not null default false;
alter table alert_handovers drop constraint alert_handovers_job_id_range_start_range_end_partition_key_key;
alter table alert_handovers add unique nulls not distinct (job_id, range_start, range_end, partition_key, history);

-- Whether a dead task of a retired job needs nobody: what it was to do had been done before.
create or replace view dead_tasks with (security_invoker = true) as
select t.task_id, t.job_id, t.acknowledged_at, t.partition_key, t.range_start, t.range_end, t.finished_at, t.error,
  case
    when t.acknowledged_at is not null then 'acknowledged'
    when not j.routed then 'retired'
    when s.superseded then 'superseded'
    else 'open'
  end as standing,
  t.backfill, s.superseded
from tasks t join jobs j using (job_id) cross join lateral (
  select exists (
      select 1 from job_outputs o join generation_cursors k using (generation_id) join dataset_commits c using (generation_id)
      where o.job_id = t.job_id and c.superseded_by is null and c.committed_at > t.finished_at
        and c.range_start >= greatest(t.range_start::numeric - k.widest, -9223372036854775808)::bigint
        and c.range_start <= t.range_start and c.range_end >= t.range_end offset 0)
    or exists (
      select 1 from job_inputs i join events e on e.generation_id = i.generation_id
        and e.range_start = t.range_start and e.partition_key is null
      join task_inputs f on f.event_id = e.event_id and f.job_id = t.job_id join tasks s on s.task_id = f.task_id
      where i.job_id = t.job_id and t.partition_key is null and s.state = 'completed' and s.finished_at > t.finished_at
      offset 0)
    or exists (
      select 1 from job_inputs i join events e on e.generation_id = i.generation_id
        and e.range_start = t.range_start and e.partition_key is not null and e.partition_key = t.partition_key
      join task_inputs f on f.event_id = e.event_id and f.job_id = t.job_id join tasks s on s.task_id = f.task_id
      where i.job_id = t.job_id and s.state = 'completed' and s.finished_at > t.finished_at
      offset 0) as superseded
) s
where t.stage = 3;
