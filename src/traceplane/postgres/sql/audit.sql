-- The audit log: changes, refusals, and what admins see of them.

-- name: record_changes
-- One row for each act, if its transaction has changed anything.
insert into audit_log (org_id, principal, kind, action, object, remote, request_id, outcome)
select org_id, principal, kind, action, object::jsonb, remote, request_id, 'ok'
from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
  as a (org_id, principal, kind, action, object, remote, request_id)
where pg_current_xact_id_if_assigned() is not null

-- name: record_command
-- A command on the database, if it has changed anything.
insert into audit_log (org_id, principal, kind, action, object, outcome)
select org_id, $2, 'operator', $3, $4::text::jsonb, 'ok' from orgs
where slug = $1 and pg_current_xact_id_if_assigned() is not null

-- name: record_refusals
-- Calls that were refused because of who made them; equal ones are one row.
insert into audit_log (org_id, principal, kind, action, object, remote, request_id, outcome, times)
select org_id, principal, kind, action, object::jsonb, remote, request_id, outcome, times
from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::int[])
  as a (org_id, principal, kind, action, object, remote, request_id, outcome, times)

-- name: newest
-- A page of an organization's rows, newest first, before a row if one is given.
select audit_id, at, principal, kind, action, object, remote, request_id, outcome, times
from audit_log
where org_id = $1 and audit_id < coalesce($2::bigint, 9223372036854775807)
  and ($3::text is null or principal = $3) and ($4::text is null or strpos(action, $4) > 0)
  and ($5::boolean is null or (outcome <> 'ok') = $5)
  and at >= coalesce($6::timestamptz, '-infinity') and at < coalesce($7::timestamptz, 'infinity')
order by audit_id desc limit $8

-- name: oldest
-- The same, oldest first, after a row.
select audit_id, at, principal, kind, action, object, remote, request_id, outcome, times
from audit_log
where org_id = $1 and audit_id > $2::bigint
  and ($3::text is null or principal = $3) and ($4::text is null or strpos(action, $4) > 0)
  and ($5::boolean is null or (outcome <> 'ok') = $5)
  and at >= coalesce($6::timestamptz, '-infinity') and at < coalesce($7::timestamptz, 'infinity')
order by audit_id limit $8
