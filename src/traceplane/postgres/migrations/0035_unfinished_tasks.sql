-- Unfinished tasks are found by index, however many have finished.
--
-- Two partial indexes hold them: one those that wait, one those in flight. `stage in (0, 1)` is covered by neither, so
-- Postgres read the whole table for it. Each stage has to be asked for by itself.

create function has_unfinished_tasks(job uuid) returns boolean language sql stable parallel safe as $$
  select exists (select 1 from tasks where job_id = job and stage = 0)
      or exists (select 1 from tasks where job_id = job and stage = 1)
$$;

create or replace function reads_unfinished(job uuid) returns boolean language sql stable as $$
  with recursive upstream as (
    select o.job_id from job_inputs r join job_outputs o using (generation_id)
    where r.job_id = job and r.read->>'what' in ('all', 'latest')
    union
    select o.job_id from upstream u join job_inputs i on i.job_id = u.job_id join job_outputs o using (generation_id)
  )
  select exists (
    select 1 from upstream u join jobs j using (job_id) where j.building and j.activation = 'reactive'
      and (exists (select 1 from replays r where r.job_id = u.job_id) or has_unfinished_tasks(u.job_id)))
$$;

create or replace function batch_is_due(batch open_batches) returns boolean language sql stable as $$
  select case when batch.due_at is not null then batch.due_at <= tp_now() else not exists (
    select 1 from job_outputs x join job_inputs i using (generation_id)
    where x.job_id = batch.job_id and has_unfinished_tasks(i.job_id)) end
$$;
