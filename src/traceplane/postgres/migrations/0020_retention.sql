-- History ends: what nobody needs any more is deleted in the background.

-- When the next round of each kind is due. Whoever moves it on runs the round, so that one dispatcher does.
create table retention_rounds (
  kind text primary key,
  due_at timestamptz not null default tp_now()
);

-- Whether a version that serves, is being built or can be rolled back to has a job, or a generation.
create index dag_version_jobs_by_job on dag_version_jobs (job_id);

create function job_in_reach(job uuid) returns boolean language sql stable as $$
  select exists (
    select 1 from dag_version_jobs v join dag_versions w using (dag_version_id)
    where v.job_id = job and w.state <> 'collected')
$$;

create function generation_in_reach(generation uuid) returns boolean language sql stable as $$
  select exists (
    select 1 from dag_version_datasets v join dag_versions w using (dag_version_id)
    where v.generation_id = generation and w.state <> 'collected')
$$;

-- Block ranges found the lineage of a task as long as the table only grew. Rows in the space of deleted ones are in no
-- order, so it takes a tree.
drop index task_inputs_by_task;
create index task_inputs_by_task on task_inputs (task_id);

-- Positions that datasets have dropped because they were older than their `retention`, in buckets like those of
-- generation_coverage. One that was computed again since stays here: its age counts from that commit.
create table dropped_positions (
  dataset_uuid uuid not null,
  bucket bigint not null,
  positions int8multirange not null,
  primary key (dataset_uuid, bucket)
) with (fillfactor = 50);

create function ever_dropped(dataset uuid) returns int8multirange language sql stable parallel safe as $$
  select coalesce(range_agg(r), '{}') from dropped_positions d, unnest(d.positions) r where d.dataset_uuid = dataset
$$;

-- What a dataset has dropped and does not hold again.
create function dropped_of(dataset uuid) returns int8multirange language sql stable parallel safe as $$
  select ever_dropped(d.dataset_uuid) - coalesce(coverage_of(d.current_generation_id), '{}')
  from datasets d where d.dataset_uuid = dataset
$$;

-- What all outputs of a job have dropped: a rebuild does not compute it again. Null: the job has no outputs.
create function dropped_by_job(job uuid) returns int8multirange language sql stable parallel safe as $$
  select range_intersect_agg(dropped_of(o.dataset_uuid)) from job_outputs o where o.job_id = job
$$;
