-- Channels of organizations, and the messages that wait for them.

create table channels (
  channel_id uuid primary key default uuid7(),
  org_id uuid not null references orgs,
  name text not null,
  -- With references to secrets, never with their values.
  config jsonb not null,
  -- Whether it gets the platform's own alerts.
  platform_alerts boolean not null default false,
  changed_at timestamptz not null default tp_now(),
  changed_by text not null,
  unique (org_id, name),
  unique (channel_id, org_id)
);

create table alert_deliveries (
  delivery_id uuid primary key default uuid7(),
  -- The order in which messages were queued, and are sent.
  number bigint generated always as identity,
  org_id uuid not null,
  channel_id uuid not null,
  -- Of the message: it is queued once, however often somebody says so.
  key text not null,
  -- What an alert has in common with its acknowledgement and its retraction, which must not overtake it.
  incident text not null,
  kind text not null check (kind in ('alert', 'acknowledgement', 'retraction')),
  message jsonb not null,
  state text not null default 'waiting' check (state in ('waiting', 'delivered', 'dead', 'withdrawn')),
  -- Committed before the message is sent: 0 proves that it was not.
  tries int not null default 0,
  -- Of these, how many no longer count, since somebody replayed the message after them.
  forgiven_tries int not null default 0,
  -- Who is sending it, until the outcome is recorded.
  holder uuid,
  created_at timestamptz not null default tp_now(),
  ready_at timestamptz not null default tp_now(),
  ended_at timestamptz,
  -- Why it was not delivered the last time, or at all.
  failure jsonb,
  unique (channel_id, key),
  foreign key (channel_id, org_id) references channels (channel_id, org_id) on delete cascade,
  check ((state = 'waiting') = (ended_at is null)),
  check (holder is null or (state = 'waiting' and tries > 0))
);
create index alert_deliveries_waiting on alert_deliveries (channel_id, number) where state = 'waiting';
create index alert_deliveries_ready on alert_deliveries (channel_id, ready_at) where state = 'waiting';
create index alert_deliveries_in_order on alert_deliveries (channel_id, incident, number) where state = 'waiting';
create index alert_deliveries_of_incident on alert_deliveries (org_id, incident);
create index alert_deliveries_of_org on alert_deliveries (org_id, number);
create index alert_deliveries_dead on alert_deliveries (channel_id, number) where state = 'dead';

-- One process at a time sends over a channel: its pace is kept, and its receiver is spared when it fails.
create table channel_leases (
  channel_id uuid primary key references channels on delete cascade,
  holder uuid not null,
  expires_at timestamptz not null
);

call belongs_to_org('{channels, alert_deliveries}', 'org_id = (select current_org())');
call belongs_to_org('{channel_leases}', 'exists (select 1 from channels p where p.channel_id = THIS.channel_id)');
grant usage on all sequences in schema traceplane to traceplane_org;
