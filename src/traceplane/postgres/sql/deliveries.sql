-- Messages that wait for their channels, and what became of them.

-- name: queue
-- New messages, in this order. One whose key the channel has had before stays as it is.
with added as (
  insert into alert_deliveries (org_id, channel_id, key, incident, kind, message)
  select org_id, channel_id, key, incident, kind, message
  from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::jsonb[])
    with ordinality as g (org_id, channel_id, key, incident, kind, message, ord)
  order by ord
  on conflict (channel_id, key) do nothing returning 1
)
select count(*), pg_notify('traceplane_delivery', '') from added having count(*) > 0

-- name: withdraw
-- Alerts whose cause is gone: those that were never tried are not sent, nor are acknowledgements of them. Returns the
-- others, which were or may have been sent. The rows are locked first, so that a claim is either seen or waits.
with those as materialized (
  select delivery_id, channel_id, kind, message, state, tries from alert_deliveries
  where org_id = $1 and incident = any($2::text[]) and kind in ('alert', 'acknowledgement')
  order by delivery_id for update
), withdrawn as (
  update alert_deliveries d set state = 'withdrawn', ended_at = tp_now()
  from those t where d.delivery_id = t.delivery_id and t.state = 'waiting' and t.tries = 0
)
select channel_id, message from those
where kind = 'alert' and (tries > 0 or state not in ('waiting', 'withdrawn')) order by delivery_id

-- name: sent
-- Alerts that channels have got, or get yet.
select channel_id, message from alert_deliveries
where org_id = $1 and incident = any($2::text[]) and key = any($3::text[]) and kind = 'alert'
  and state in ('waiting', 'delivered')
order by number

-- name: channels_by_name
-- The channels of an organization with these names.
select name, channel_id from channels where org_id = $1 and name = any($2::text[])

-- name: lease
-- The channels with something to send that no other process works on, leased to this one. They are found by skipping
-- through the index rather than reading every waiting message.
with recursive waiting as (
  (select channel_id from alert_deliveries where state = 'waiting' order by channel_id limit 1)
  union all
  select (select d.channel_id from alert_deliveries d where d.state = 'waiting' and d.channel_id > w.channel_id
          order by d.channel_id limit 1)
  from waiting w where w.channel_id is not null
)
insert into channel_leases as l (channel_id, holder, expires_at)
select w.channel_id, $1, tp_now() + $2::interval from waiting w
where exists (select 1 from alert_deliveries d
              where d.channel_id = w.channel_id and d.state = 'waiting' and d.ready_at <= tp_now())
order by w.channel_id
on conflict (channel_id) do update set holder = excluded.holder, expires_at = excluded.expires_at
where l.holder = excluded.holder or l.expires_at < tp_now()
returning channel_id

-- name: release
-- The leases of a process that stops.
delete from channel_leases where holder = $1

-- name: claim
-- The messages of a channel that have been ready longest, while this process ($2) has its lease. That they are tried,
-- and by whom ($3), is committed before they are sent; one that another holder left unrecorded is sent again. No message
-- overtakes another of the same incident; those are found by the incident, since no index can be used for IS NOT
-- DISTINCT FROM. Nothing here may depend on statistics: thousands of messages can be new since the last ones were taken,
-- and a plan that reads all that waits for each claim needs minutes for them.
with ready as materialized (
  select d.delivery_id from alert_deliveries d
  where d.channel_id = $1 and d.state = 'waiting' and d.ready_at <= tp_now() and d.holder is distinct from $3::uuid
    and exists (select 1 from channel_leases l where l.channel_id = $1 and l.holder = $2 and l.expires_at > tp_now())
    and not exists (select 1 from alert_deliveries e where e.channel_id is not distinct from $1::uuid
                    and e.state = 'waiting' and e.incident = d.incident and e.number < d.number offset 0)
  order by d.ready_at, d.number limit $4 for update skip locked
)
update alert_deliveries d set tries = d.tries + 1, holder = $3
where d.delivery_id = any(array(select delivery_id from ready))
returning d.delivery_id, d.number, d.tries - d.forgiven_tries as tries, d.message,
  extract(epoch from tp_now() - d.created_at)::float8 as age

-- name: record
-- What became of messages, as far as this holder ($1) still has them; those that wait again do so for some seconds.
-- A try that certainly sent nothing does not count. Each is found by its id, whatever the statistics say: the state and
-- the holder are looked at afterwards.
with told as materialized (
  select * from unnest($2::uuid[], $3::text[], $4::jsonb[], $5::float8[], $6::boolean[])
    as r (delivery_id, state, failure, pause, is_unsent)
  order by delivery_id
), locked as materialized (
  select t.*, d.holder, d.state as before from told t
  cross join lateral (select holder, state from alert_deliveries where delivery_id = t.delivery_id for update) d
)
update alert_deliveries d set state = l.state, failure = case when l.is_unsent then d.failure else l.failure end,
  holder = null, tries = d.tries - l.is_unsent::int,
  ready_at = tp_now() + l.pause * interval '1 second', ended_at = case when l.state <> 'waiting' then tp_now() end
from locked l where d.delivery_id = l.delivery_id and l.holder = $1 and l.before = 'waiting'
returning d.delivery_id

-- name: hasten
-- Messages that wait for the next try over a channel that leads to another receiver now: they are ready, with all their
-- tries before them.
with chosen as materialized (
  select delivery_id from alert_deliveries
  where channel_id = $1 and state = 'waiting' and holder is null and ready_at > tp_now()
  order by delivery_id for update
), changed as (
  update alert_deliveries d set ready_at = tp_now(), forgiven_tries = d.tries
  from chosen c where d.delivery_id = c.delivery_id returning 1
)
select count(*), pg_notify('traceplane_delivery', '') from changed having count(*) > 0

-- name: listed
-- Messages of an organization, newest first.
select d.number, d.delivery_id, c.name as channel, d.key, d.kind, d.message ->> 'alert' as alert,
  d.message ->> 'severity' as severity, d.message ->> 'title' as title, d.state, d.tries, d.created_at,
  case when d.state = 'waiting' then d.ready_at end as ready_at, d.ended_at,
  d.failure ->> 'code' as code, d.failure ->> 'reason' as reason
from alert_deliveries d join channels c using (channel_id)
where d.org_id = $1 and ($2::uuid is null or d.channel_id = $2) and ($3::text is null or d.state = $3)
  and ($4::bigint is null or d.number < $4)
order by d.number desc limit $5

-- name: lock_dead
-- Dead messages: by their ids, or the oldest of a channel. Until the transaction ends, a retraction waits for them.
select delivery_id from alert_deliveries
where org_id = $1 and state = 'dead' and (delivery_id = any($2::uuid[]) or channel_id = $3)
order by delivery_id limit $4 for update

-- name: replay
-- Dead messages that were locked wait again, with all their tries before them. Those about an alert that is gone do not:
-- its retraction was queued, or all that they told of was retracted without one, or is there once more under another key.
with chosen as materialized (
  select d.delivery_id, d.org_id, d.channel_id, d.incident, d.kind,
    case when d.kind = 'acknowledgement' then regexp_replace(d.key, '-acknowledgement$', '') else d.key end as alert_key
  from alert_deliveries d where d.delivery_id = any($1::uuid[])
), judged as materialized (
  select c.delivery_id, c.kind <> 'retraction' and (
    exists (select 1 from alert_deliveries r where r.channel_id = c.channel_id and r.key = c.alert_key || '-retraction')
    or coalesce((select bool_and(e.retracted_at is not null or e.incident = e.key and c.alert_key <>
                                 case when e.occurrence = 1 then e.key else e.key || '-' || e.occurrence end)
                 from alert_events e where e.org_id = c.org_id and e.incident = c.incident), false)) as gone
  from chosen c
), changed as (
  update alert_deliveries d set
    state = case when j.gone then 'withdrawn' else 'waiting' end,
    forgiven_tries = case when j.gone then d.forgiven_tries else d.tries end,
    ready_at = case when j.gone then d.ready_at else tp_now() end,
    ended_at = case when j.gone then tp_now() end,
    failure = case when j.gone then $2::jsonb else d.failure end
  from judged j where d.delivery_id = j.delivery_id returning j.gone
)
select count(*) filter (where not gone) as replayed, count(*) filter (where gone) as withdrawn,
  pg_notify('traceplane_delivery', '') from changed

-- name: drop
-- Messages that wait or are dead are not sent any more: by their ids, or the oldest of a channel.
with chosen as materialized (
  select delivery_id from alert_deliveries
  where org_id = $1 and state in ('waiting', 'dead') and (delivery_id = any($2::uuid[]) or channel_id = $3)
  order by delivery_id limit $4 for update
), changed as (
  update alert_deliveries d set state = 'withdrawn', holder = null, ended_at = tp_now(), failure = $5
  from chosen c where d.delivery_id = c.delivery_id returning 1
)
select count(*) from changed
