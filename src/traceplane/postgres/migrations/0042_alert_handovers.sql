-- What a version of an alert had not come to when another took its place: new events, although the other one may read of
-- them in a replay, as it reads of history.

create table alert_handovers (
  -- The job of the version that serves that routes the alert.
  job_id uuid not null references jobs on delete cascade,
  partition_key text,
  range_start bigint not null,
  range_end bigint not null,
  unique nulls not distinct (job_id, range_start, range_end, partition_key)
);

call belongs_to_org('{alert_handovers}', 'exists (select 1 from jobs p where p.job_id = THIS.job_id)');
