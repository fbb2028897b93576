-- Channels of organizations: how messages reach people and other services.

-- name: lock_all
-- Channels of an organization are set one at a time, so that each counts those before it.
select pg_advisory_xact_lock(1635151217, hashtext($1::uuid::text))

-- name: set
-- A new channel, or another config of one. A new one only while the organization has fewer than $6.
with before as materialized (
  select config from channels where org_id = $1 and name = $2 for update
), made as (
  insert into channels as c (org_id, name, config, platform_alerts, changed_by)
  select $1, $2, $3, $4, $5
  where exists (select 1 from before) or (select count(*) from channels where org_id = $1) < $6
  on conflict (org_id, name) do update set config = excluded.config, platform_alerts = excluded.platform_alerts,
    changed_by = excluded.changed_by, changed_at = tp_now()
  returning c.channel_id, c.config
)
select m.channel_id, exists (select 1 from before b where b.config <> m.config) as changed from made m

-- name: with_text
-- The channels of an organization whose config has a text.
select channel_id from channels where org_id = $1 and strpos(config::text, $2) > 0 order by channel_id

-- name: listed
-- Channels of an organization, all or the one with a name, with how many messages wait and how many are dead.
select c.channel_id, c.name, c.config, c.platform_alerts, c.changed_at, c.changed_by,
  (select count(*) from alert_deliveries d where d.channel_id = c.channel_id and d.state = 'waiting') as waiting,
  (select count(*) from alert_deliveries d where d.channel_id = c.channel_id and d.state = 'dead') as dead
from channels c where c.org_id = $1 and ($2::text is null or c.name = $2) order by c.name

-- name: dead_messages
-- The channels of an organization with messages that could not be delivered, and how many.
select c.name, d.messages from channels c cross join lateral (
  select count(*) as messages from alert_deliveries d where d.channel_id = c.channel_id and d.state = 'dead') d
where c.org_id = $1 and d.messages > 0 order by c.name

-- name: depths
-- Messages that wait and that are dead by channel, of all organizations together, for gauges.
select c.name as channel, sum(d.waiting)::bigint as waiting, sum(d.dead)::bigint as dead
from channels c cross join lateral (
  select (select count(*) from alert_deliveries w where w.channel_id = c.channel_id and w.state = 'waiting') as waiting,
    (select count(*) from alert_deliveries x where x.channel_id = c.channel_id and x.state = 'dead') as dead) d
group by c.name

-- name: names
-- The names of an organization's channels.
select name from channels where org_id = $1 order by name

-- name: names_in
-- The names of the channels of an organization that is given by its name.
select c.name from channels c join orgs o using (org_id) where o.slug = $1 order by c.name

-- name: hold
-- Those of the names that are channels; nobody removes them until the end of the transaction.
select c.name from channels c join orgs o using (org_id) where o.slug = $1 and c.name = any($2::text[])
order by c.name for share of c

-- name: named_by
-- Deployed alerts that are sent to a channel.
select k.name as dag, j.definition->'config'->>'alert' as alert from jobs j join dags k using (dag_id)
where k.org_id = $1 and j.operator = $3 and j.routed and j.definition->'config'->'channels' ? $2
order by 1, 2

-- name: lock
-- A channel that nobody can queue messages for until the end of the transaction.
select channel_id from channels where org_id = $1 and name = $2 for update

-- name: waits
-- How many messages wait for a channel.
select count(*) from alert_deliveries where channel_id = $1 and state = 'waiting'

-- name: remove
-- Removes a channel with all its messages.
delete from channels where channel_id = $1

-- name: in_use
-- A channel, for whoever sends over it.
select c.name, o.slug as org, c.config from channels c join orgs o using (org_id) where c.channel_id = $1
