-- What operators wrote, and dead tasks that somebody has seen to.

-- The end of what an attempt wrote, kept with its report. Beside the tasks rather than in them, since every claim and
-- heartbeat would copy it; an attempt that wrote nothing has no row.
create table task_logs (
  task_id uuid not null,
  attempt int not null,
  text text not null,
  written_at timestamptz not null,
  primary key (task_id, attempt)
);

-- A dead task that needs nobody any more, and who said so.
alter table tasks add column acknowledged_at timestamptz, add column acknowledged_by text;
create index tasks_dead_open on tasks (job_id, task_id) where stage = 3 and acknowledged_at is null;

-- Dead tasks, and whether they still need somebody. `retired`: their job is no longer deployed. `superseded`: what they
-- were to do has been done since, by a commit of their scope or by another task that an event of it made.
create view dead_tasks as
select t.task_id, t.job_id, t.acknowledged_at, t.partition_key, t.range_start, t.range_end, t.finished_at, t.error,
  case
    when t.acknowledged_at is not null then 'acknowledged'
    when not j.routed then 'retired'
    when exists (
      select 1 from job_outputs o join generation_cursors k using (generation_id) join dataset_commits c using (generation_id)
      where o.job_id = t.job_id and c.superseded_by is null and c.committed_at > t.finished_at
        and c.range_start >= greatest(t.range_start::numeric - k.widest, -9223372036854775808)::bigint
        and c.range_start <= t.range_start and c.range_end >= t.range_end offset 0) then 'superseded'
    when exists (
      select 1 from job_inputs i join events e on e.generation_id = i.generation_id
        and e.range_start = t.range_start and e.partition_key is null
      join task_inputs f on f.event_id = e.event_id and f.job_id = t.job_id join tasks s on s.task_id = f.task_id
      where i.job_id = t.job_id and t.partition_key is null and s.state = 'completed' and s.finished_at > t.finished_at
      offset 0) then 'superseded'
    when exists (
      select 1 from job_inputs i join events e on e.generation_id = i.generation_id
        and e.range_start = t.range_start and e.partition_key is not null and e.partition_key = t.partition_key
      join task_inputs f on f.event_id = e.event_id and f.job_id = t.job_id join tasks s on s.task_id = f.task_id
      where i.job_id = t.job_id and s.state = 'completed' and s.finished_at > t.finished_at
      offset 0) then 'superseded'
    else 'open'
  end as standing
from tasks t join jobs j using (job_id) where t.stage = 3;
