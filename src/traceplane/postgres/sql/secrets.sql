-- Secrets: sealed values by name, and what jobs may use of them.

-- name: grant
-- Who may use a secret and who may set it, each if it is given ($5, $7). Its row is locked, so of two callers the second
-- waits.
insert into secrets as s (org_id, namespace, name, allowed_jobs, roles, created_at)
select org_id, $2, $3, $4::text[], $6::text[], tp_now() from orgs where slug = $1
on conflict (org_id, namespace, name) do update set
  allowed_jobs = case when $5::boolean then excluded.allowed_jobs else s.allowed_jobs end,
  roles = case when $7::boolean then excluded.roles else s.roles end

-- name: rights
-- Who may use these secrets, and who may set them. There may be rights of a secret that does not exist.
select w.ord::int - 1 as number, s.allowed_jobs, s.roles
from unnest($1::text[], $2::text[], $3::text[]) with ordinality as w (org, namespace, name, ord)
join orgs o on o.slug = w.org join secrets s on s.org_id = o.org_id and s.namespace = w.namespace and s.name = w.name

-- name: rights_of_org
-- The same of all secrets of an organization, with the time of their last use.
select s.namespace, s.name, s.allowed_jobs, s.roles, s.last_used_at
from secrets s join orgs o using (org_id) where o.slug = $1

-- name: next_version
-- The number of the next version of a secret.
update secrets s set newest = s.newest + 1 from orgs o
where o.org_id = s.org_id and o.slug = $1 and s.namespace = $2 and s.name = $3
returning s.secret_id, s.newest

-- name: store_version
-- Stores a version, sealed.
insert into secret_versions (secret_id, version, sealed_value, sealed_key, master_key_id, set_by, set_at)
values ($1, $2, $3, $4, $5, $6, tp_now())

-- name: forget_versions
-- Only the newest version is ever handed out; one before it stays, for whoever has to go back.
delete from secret_versions where secret_id = $1 and version < $2 - 1

-- name: listed
-- What may be told of the versions of an organization's secrets.
select s.namespace, s.name, v.version, v.set_by, v.set_at
from secrets s join orgs o using (org_id) join secret_versions v on v.secret_id = s.secret_id and v.version = s.newest
where o.slug = $1 order by s.namespace, s.name

-- name: removed
-- Removes a secret with all its versions.
delete from secrets s using orgs o where o.org_id = s.org_id and o.slug = $1 and s.namespace = $2 and s.name = $3
returning true

-- name: newest
-- The newest version of each of these secrets that there is.
select w.ord::int - 1 as number, s.secret_id, v.version, v.sealed_value, v.sealed_key, v.master_key_id
from unnest($1::text[], $2::text[], $3::text[]) with ordinality as w (org, namespace, name, ord)
join orgs o on o.slug = w.org join secrets s on s.org_id = o.org_id and s.namespace = w.namespace and s.name = w.name
join secret_versions v on v.secret_id = s.secret_id and v.version = s.newest

-- name: used
-- Notes that these were handed out, at most once a minute. One that another claim is noting is left to it: claims must
-- not wait for each other.
update secrets set last_used_at = tp_now() where secret_id in (
  select s.secret_id from secrets s join orgs o using (org_id)
  join unnest($1::text[], $2::text[], $3::text[]) as w (org, namespace, name)
    on o.slug = w.org and s.namespace = w.namespace and s.name = w.name
  where s.last_used_at is null or s.last_used_at < tp_now() - interval '1 minute'
  order by s.secret_id for no key update of s skip locked)

-- name: add_unknown
-- Rows for secrets whose values are elsewhere, so that their use can be noted.
insert into secrets (org_id, namespace, name, created_at)
select o.org_id, w.namespace, w.name, tp_now()
from (select distinct * from unnest($1::text[], $2::text[], $3::text[]) as u (org, namespace, name)) w
join orgs o on o.slug = w.org order by 1, 2, 3
on conflict (org_id, namespace, name) do nothing

-- name: begin_sealing
-- Before a master key is read to seal with, until the end of the transaction.
select pg_advisory_xact_lock_shared(7203118)

-- name: await_sealing
-- Waits for all who are sealing, and keeps others from it until the end of the transaction.
select pg_advisory_xact_lock(7203118)

-- name: is_sealed_with_others
-- Whether a key is sealed with another master key than this one.
select exists (select 1 from secret_versions where master_key_id <> $1)

-- name: sealed_with_others
-- Versions whose keys are sealed with another master key than this one.
select secret_id, version, sealed_key, master_key_id from secret_versions
where master_key_id <> $1 order by secret_id, version limit $2 for update skip locked

-- name: seal_anew
-- Replaces the sealed keys of versions.
update secret_versions v set sealed_key = n.sealed_key, master_key_id = $4
from unnest($1::uuid[], $2::int[], $3::bytea[]) as n (secret_id, version, sealed_key)
where v.secret_id = n.secret_id and v.version = n.version
