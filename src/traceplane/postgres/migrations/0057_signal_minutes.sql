-- What each organization's pipelines made of the signals of the last hour. An organization is never shown the traffic of
-- a topic that it shares with others. What a crash of Postgres takes is written anew within the hour.
create unlogged table signal_minutes (
  org_id uuid not null references orgs,
  minute timestamptz not null,
  -- Those on tickers that its pipelines watch.
  signals bigint not null,
  matches bigint not null,
  -- The longest from publishing a signal to being done with it; null: nobody knows.
  lag_seconds float8,
  primary key (org_id, minute)
);
alter table signal_minutes enable row level security;
create policy of_the_organization on signal_minutes to traceplane_org using (org_id = (select current_org()));
grant select on signal_minutes to traceplane_org;
