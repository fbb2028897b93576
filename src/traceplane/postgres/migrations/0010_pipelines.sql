-- Jobs that pipelines run, and since when a pipeline's schedule counts.

alter table jobs drop constraint jobs_source_kind_check;
alter table jobs add constraint jobs_source_kind_check
  check (source_kind in ('manual', 'cron', 'webhook', 'always_on', 'pipeline'));

-- When it was made, switched on, or given another schedule: no earlier time of the schedule is made up for.
alter table pipelines add column active_since timestamptz not null default tp_now();
