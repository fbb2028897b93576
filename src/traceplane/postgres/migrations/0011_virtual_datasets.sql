-- Jobs that read virtual datasets keep what makes their inputs; they are few, and looked for at every cutover.
create index jobs_reading_virtual on jobs (job_id) where routed and definition ? 'virtual';
