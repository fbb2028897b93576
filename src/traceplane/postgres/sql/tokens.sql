-- Signing keys and opaque tokens.

-- name: organizations
-- The organizations that tokens may be issued for.
select slug, org_id from orgs order by slug

-- name: add_organization
-- An organization, if there is none of this name.
insert into orgs (slug) values ($1) on conflict (slug) do nothing returning slug

-- name: signing_keys
-- Every key that may still be of use.
select kid, sealed_private_key, public_jwk, extract(epoch from created_at)::float8 as created_at,
       extract(epoch from activates_at)::float8 as activates_at, extract(epoch from retires_at)::float8 as retires_at
from signing_keys where retires_at is null or retires_at > tp_now() order by activates_at

-- name: store_signing_key
-- Adds a key, or changes the expiry of an old one and what it is sealed with.
insert into signing_keys (kid, sealed_private_key, public_jwk, created_at, activates_at, retires_at)
values ($1, $2, $3, to_timestamp($4), to_timestamp($5), to_timestamp($6))
on conflict (kid) do update set retires_at = excluded.retires_at, sealed_private_key = excluded.sealed_private_key

-- name: lock_signing_keys
-- One rotation at a time.
lock table signing_keys in share row exclusive mode

-- name: retire_signing_keys
-- Expires every key immediately, including those that nobody can decrypt any more.
update signing_keys set retires_at = tp_now() where retires_at is null or retires_at > tp_now()

-- name: access_tokens
-- Hashes of the opaque tokens, including recently expired ones, so that their refusal names the reason.
-- A member's roles are those that have not expired; one that is disabled has none.
select t.token_hash, t.token_id, t.principal, t.org, o.org_id, t.name, t.sees_pii, t.roles, t.datasets, t.created_by,
       t.serves, t.member_id, t.made_from, m.kind as member_kind, m.name as member_name,
       extract(epoch from t.created_at)::float8 as created_at, extract(epoch from t.expires_at)::float8 as expires_at,
       extract(epoch from t.revoked_at)::float8 as revoked_at,
       case when t.member_id is not null then array(
         select g.role from org_role_memberships g
         where g.member_id = t.member_id and m.disabled_at is null and (g.expires_at is null or g.expires_at > tp_now())
       ) end as member_roles
from access_tokens t join orgs o on o.slug = t.org left join org_members m using (member_id)
where t.expires_at is null or t.expires_at > tp_now() - interval '1 day'

-- name: roles
-- The roles of all organizations, and what they include.
select org_id, name, includes, sees_pii from org_roles

-- name: note_use
-- To the minute, so that a token in use is not written at every look.
update access_tokens set last_used_at = tp_now()
where token_id = any($1::uuid[]) and (last_used_at is null or last_used_at < tp_now() - interval '1 minute')

-- name: lock_access_tokens
-- One rotation or revocation at a time: a rotation that read a token before it was revoked would revive it.
lock table access_tokens in share row exclusive mode

-- name: store_access_token
-- A new token's hash, or the expiry of an old one.
insert into access_tokens (token_hash, principal, org, name, created_at, expires_at, revoked_at, sees_pii, roles, datasets,
                           created_by, member_id, serves, made_from)
values ($1, $2, $3, $4, to_timestamp($5::float8), to_timestamp($6::float8), to_timestamp($7::float8), $8, $9, $10, $11, $12,
        $13, $14)
on conflict (token_hash) do update set expires_at = excluded.expires_at, revoked_at = excluded.revoked_at

-- name: clock
-- The database's clock, in seconds.
select extract(epoch from tp_now())::float8

-- name: hold_token
-- Whether a token is not revoked; if so, it stays that way until the end of the transaction.
select revoked_at is null from access_tokens where token_id = $1 for share

-- name: revoke_made_from
-- Ends what was made from a token.
update access_tokens set revoked_at = tp_now() where made_from = $1 and revoked_at is null

-- name: forget_codes
-- Codes for browsers that nobody used in time.
delete from access_tokens where created_by = $1 and expires_at < tp_now()

-- name: spend_code
-- A code for a browser works once.
delete from access_tokens
where token_hash = $1 and created_by = $2 and revoked_at is null and expires_at > tp_now() returning true
