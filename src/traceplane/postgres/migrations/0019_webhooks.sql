-- Webhook sources: what was delivered before, and what was refused.

-- The jobs that have a path; the gateway reads all of them every few seconds.
create index jobs_with_a_path on jobs (dag_id) where source_kind = 'webhook' and definition->'config' ? 'path';

-- What identifies the deliveries of a source, for as long as a sender may repeat them. The dataset stands for the
-- source: it stays the same when the job is changed or renamed.
create table webhook_keys (
  dataset_uuid uuid not null,
  key text not null,
  received_at timestamptz not null,
  primary key (dataset_uuid, key)
);
-- Keys come in the order of time, and only the oldest are looked for.
create index webhook_keys_by_age on webhook_keys using brin (received_at) with (autosummarize = on);

-- Deliveries that were refused, and repetitions, by reason.
create table webhook_refusals (
  dataset_uuid uuid not null,
  code text not null,
  count bigint not null,
  last_at timestamptz not null,
  primary key (dataset_uuid, code)
);
