-- Alerts: what was found, whether it was sent, and what nobody wants to hear of for a while.

create table alert_events (
  alert_event_id uuid primary key default uuid7(),
  org_id uuid not null references orgs,
  -- The DAG and its alert; of the platform's own alerts, the DAG is empty.
  dag text not null,
  alert text not null,
  -- What it is about, and where: the same however often it is found.
  key text not null,
  -- The dataset that it is about, whose readers may see it; null: the whole organization may.
  dataset_id text,
  position bigint,
  -- Generations of found rows that have it now. Those of another version say nothing about this one's.
  generations uuid[] not null default '{}',
  severity text not null,
  title text not null,
  body text not null,
  subject jsonb not null,
  fields jsonb not null,
  owner text not null default '',
  channels text[] not null default '{}',
  event_time timestamptz not null,
  found_at timestamptz not null default tp_now(),
  -- How often it was found after it was gone.
  occurrence int not null default 1,
  -- What the messages about it have in common: its key, or that of the group that it was sent with.
  incident text not null,
  -- Why nothing was sent; null: it was handed to its channels.
  suppressed text,
  retracted_at timestamptz,
  acknowledged_at timestamptz,
  acknowledged_by text,
  unique (org_id, dag, alert, key)
);
create index alert_events_by_position on alert_events (org_id, dag, alert, position) where retracted_at is null;
create index alert_events_of_org on alert_events (org_id, alert_event_id);
-- For throttles, which count what was sent in a while.
create index alert_events_sent on alert_events (org_id, dag, alert, found_at) where suppressed is null;
-- Found by a version that does not serve yet; sent when it does.
create index alert_events_held on alert_events (org_id, dag, alert) where suppressed = 'building';

-- Alerts that are not sent for a while.
create table alert_silences (
  silence_id uuid primary key default uuid7(),
  org_id uuid not null references orgs,
  -- null: of every DAG, of every alert.
  dag text,
  alert text,
  -- Values that a subject has; empty: any.
  subject jsonb not null default '{}',
  ends_at timestamptz not null,
  reason text not null,
  created_at timestamptz not null default tp_now(),
  created_by text not null
);
create index alert_silences_of_org on alert_silences (org_id, ends_at);

call belongs_to_org('{alert_events, alert_silences}', 'org_id = (select current_org())');
