-- Secrets: sealed values by name, and what jobs may use of them.

-- name: add_version
-- The next version of a secret, which is created if there is none of this name. Its row is locked, so two callers get
-- two versions.
insert into secrets as s (org_id, namespace, name, allowed_jobs, created_at)
select org_id, $2, $3, $4::text[], tp_now() from orgs where slug = $1
on conflict (org_id, namespace, name) do update
  set newest = s.newest + 1, allowed_jobs = case when $5::boolean then excluded.allowed_jobs else s.allowed_jobs end
returning secret_id, newest

-- name: store_version
-- Stores a version, sealed.
insert into secret_versions (secret_id, version, sealed_value, sealed_key, master_key_id, set_by, set_at)
values ($1, $2, $3, $4, $5, $6, tp_now())

-- name: forget_versions
-- Only the newest version is ever handed out; one before it stays, for whoever has to go back.
delete from secret_versions where secret_id = $1 and version < $2 - 1

-- name: listed
-- What may be told of the secrets of an organization.
select s.namespace, s.name, s.allowed_jobs, s.last_used_at, v.version, v.set_by, v.set_at
from secrets s join orgs o using (org_id) join secret_versions v on v.secret_id = s.secret_id and v.version = s.newest
where o.slug = $1 order by s.namespace, s.name

-- name: removed
-- Removes a secret with all its versions.
delete from secrets s using orgs o where o.org_id = s.org_id and o.slug = $1 and s.namespace = $2 and s.name = $3
returning true

-- name: newest
-- The newest version of each of these secrets that there is.
select w.ord::int - 1 as number, s.secret_id, s.allowed_jobs, v.version, v.sealed_value, v.sealed_key, v.master_key_id
from unnest($1::text[], $2::text[], $3::text[]) with ordinality as w (org, namespace, name, ord)
join orgs o on o.slug = w.org join secrets s on s.org_id = o.org_id and s.namespace = w.namespace and s.name = w.name
join secret_versions v on v.secret_id = s.secret_id and v.version = s.newest

-- name: used
-- Notes that these were handed out, at most once a minute. One that another claim is noting is left to it: claims must
-- not wait for each other.
update secrets set last_used_at = tp_now() where secret_id in (
  select secret_id from secrets
  where secret_id = any($1::uuid[]) and (last_used_at is null or last_used_at < tp_now() - interval '1 minute')
  order by secret_id for no key update skip locked)

-- name: sealed_with_others
-- Versions whose keys are sealed with another master key than this one.
select secret_id, version, sealed_key, master_key_id from secret_versions
where master_key_id <> $1 order by secret_id, version limit $2 for update skip locked

-- name: seal_anew
-- Replaces the sealed keys of versions.
update secret_versions v set sealed_key = n.sealed_key, master_key_id = $4
from unnest($1::uuid[], $2::int[], $3::bytea[]) as n (secret_id, version, sealed_key)
where v.secret_id = n.secret_id and v.version = n.version
