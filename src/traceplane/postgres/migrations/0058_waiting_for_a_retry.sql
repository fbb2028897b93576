-- Of a hundred thousand tasks that wait, the few that failed before are found without a look at each. Cut by the error
-- and not by the attempt, which a claim changes: no claim but that of a retry costs an index entry.
create index tasks_to_retry on tasks (job_id) where stage = 0 and error is not null;
