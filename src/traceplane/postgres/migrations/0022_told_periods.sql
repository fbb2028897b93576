-- Inputs that are read by a column of time.

-- What a `scopes` job has been told of such an input: for each period of the job, the positions that have rows in it.
create table told_periods (
  job_id uuid not null,
  input_index int not null,
  period bigint not null,
  positions int8multirange not null check (not isempty(positions)),
  primary key (job_id, input_index, period)
) with (fillfactor = 50);
create index told_periods_by_start on told_periods (job_id, input_index, lower(positions));
create index told_periods_by_end on told_periods
  (job_id, input_index, coalesce(upper(positions), 9223372036854775807));

-- The `scopes` job in front of a job, and the number that an input of the job has there.
create function told_to(job uuid, input int, out job_id uuid, out input_index int) language sql stable as $$
  select t.job_id, t.input_index
  from job_inputs own
  join job_inputs events on events.job_id = own.job_id and events.role = 'triggers'
  join job_outputs o on o.generation_id = events.generation_id
  join job_inputs t on t.job_id = o.job_id and t.name = own.name
  where own.job_id = job and own.input_index = input
  limit 1
$$;
