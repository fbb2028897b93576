-- Inputs that are not read at exactly the scope of each event.

-- feeds: its events create tasks, which read its rows; triggers: only the first; reads: only the second.
alter table job_inputs
  add column role text not null default 'feeds' check (role in ('feeds', 'triggers', 'reads')),
  -- What of the dataset a task reads; as model.edges.Read, without its defaults.
  add column read jsonb not null default '{}';

-- What a `scopes` job has been told of each of its inputs.
create table told_positions (
  job_id uuid not null,
  input_index int not null,
  bucket bigint not null,
  positions int8multirange not null,
  primary key (job_id, input_index, bucket)
) with (fillfactor = 50);

-- The scopes that a `scopes` job knows, and whether it has emitted them.
create table known_scopes (
  job_id uuid not null,
  scope_key text not null,
  partition_key text,
  range_start bigint not null,
  range_end bigint not null,
  emitted boolean not null default false,
  primary key (job_id, scope_key)
) with (fillfactor = 70);
create index known_scopes_by_start on known_scopes (job_id, range_start);
create index known_scopes_by_length on known_scopes (job_id, ((range_end::numeric - range_start)) desc)
  where range_end > range_start;

-- Which commits of an input that is read as a whole the last attempt of a task saw: all up to this one.
create table task_reads (
  task_id uuid not null,
  input_index int not null,
  generation_id uuid not null,
  commit_id bigint,
  primary key (task_id, input_index)
);

-- Partitions by name: a position for each name, the same in all datasets of an organization, so that these can be
-- joined; in the order in which the names were first used.
create table partition_names (
  org_id uuid not null references orgs,
  name text not null,
  position bigint not null,
  primary key (org_id, name),
  unique (org_id, position)
);

-- Whether a dataset that a job reads as a whole is being built and not finished: its job, or one upstream of it, still has
-- tasks, or scopes that are not tasks yet. A job that is being built waits for it.
create function reads_unfinished(job uuid) returns boolean language sql stable as $$
  with recursive upstream as (
    select o.job_id from job_inputs r join job_outputs o using (generation_id)
    where r.job_id = job and r.read->>'what' in ('all', 'latest')
    union
    select o.job_id from upstream u join job_inputs i on i.job_id = u.job_id join job_outputs o using (generation_id)
  )
  select exists (
    select 1 from upstream u join jobs j using (job_id) where j.building and j.activation = 'reactive'
      and (exists (select 1 from replays r where r.job_id = u.job_id)
        or exists (select 1 from tasks t where t.job_id = u.job_id and t.stage in (0, 1))))
$$;
