-- Signing keys and opaque tokens.

-- name: organizations
-- The organizations that tokens may be issued for.
select slug from orgs order by slug

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
select token_hash, principal, org, name, role, sees_pii, extract(epoch from created_at)::float8 as created_at,
       extract(epoch from expires_at)::float8 as expires_at, extract(epoch from revoked_at)::float8 as revoked_at
from access_tokens where expires_at is null or expires_at > tp_now() - interval '1 day'

-- name: lock_access_tokens
-- One rotation or revocation at a time: a rotation that read a token before it was revoked would revive it.
lock table access_tokens in share row exclusive mode

-- name: store_access_token
-- A new token's hash, or the expiry of an old one.
insert into access_tokens (token_hash, principal, org, name, role, created_at, expires_at, revoked_at, sees_pii)
values ($1, $2, $3, $4, $5, to_timestamp($6::float8), to_timestamp($7::float8), to_timestamp($8::float8), $9)
on conflict (token_hash) do update set expires_at = excluded.expires_at, revoked_at = excluded.revoked_at

-- name: clock
-- The database's clock, in seconds.
select extract(epoch from tp_now())::float8
