-- Under row-level security a condition that may fail is not asked of rows before it is known whose they are, so it
-- cannot be a condition of an index either. The first position is computed beforehand: comparing with it never fails.
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
      select 1 from (
        select o.generation_id, greatest(t.range_start::numeric - k.widest, -9223372036854775808)::bigint as first
        from job_outputs o join generation_cursors k using (generation_id) where o.job_id = t.job_id offset 0
      ) w join dataset_commits c using (generation_id)
      where c.superseded_by is null and c.committed_at > t.finished_at
        and c.range_start >= w.first and c.range_start <= t.range_start and c.range_end >= t.range_end offset 0)
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
