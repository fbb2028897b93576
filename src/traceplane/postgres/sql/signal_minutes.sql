-- What organizations' pipelines made of signals, by the minute.

-- name: add
-- Adds to the present minute; of two lags the longer one counts. Minutes that are no longer shown are forgotten.
with forgotten as (
  delete from signal_minutes m using (
    select org_id, minute from signal_minutes where minute < tp_now() - $5::int * interval '1 minute'
    order by org_id, minute for update skip locked) as old
  where m.org_id = old.org_id and m.minute = old.minute
)
insert into signal_minutes as m (org_id, minute, signals, matches, lag_seconds)
select n.org_id, date_trunc('minute', tp_now()), n.signals, n.matches, $4::float8
from unnest($1::uuid[], $2::bigint[], $3::bigint[]) as n (org_id, signals, matches)
order by n.org_id
on conflict (org_id, minute) do update
set signals = m.signals + excluded.signals, matches = m.matches + excluded.matches,
    lag_seconds = greatest(m.lag_seconds, excluded.lag_seconds)

-- name: latest
-- The last minutes up to the present one, oldest first; those without a trigger are empty.
select n.minute as at, least(60, extract(epoch from tp_now() - n.minute))::float8 as seconds,
       m.org_id is not null as has_trigger, m.signals, m.matches, m.lag_seconds
from generate_series(date_trunc('minute', tp_now()) - ($2::int - 1) * interval '1 minute', date_trunc('minute', tp_now()),
                     interval '1 minute') as n (minute)
left join signal_minutes m on m.org_id = (select org_id from orgs where slug = $1) and m.minute = n.minute
order by n.minute
