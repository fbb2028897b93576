-- Identity providers, the people who sign in with them, and the sessions of their browsers.

-- name: providers
-- Those of all organizations.
select o.org_id, o.slug as org, p.name, p.issuer, p.client_id, p.client_secret, p.audience, p.roles_claim, p.role_map,
       p.default_role, p.required_claims, p.scopes, p.set_by, p.set_at
from identity_providers p join orgs o using (org_id) order by o.slug, p.name

-- name: providers_of_org
-- Those of one organization.
select o.org_id, o.slug as org, p.name, p.issuer, p.client_id, p.client_secret, p.audience, p.roles_claim, p.role_map,
       p.default_role, p.required_claims, p.scopes, p.set_by, p.set_at
from identity_providers p join orgs o using (org_id) where p.org_id = $1 order by p.name

-- name: set_provider
-- Adds a provider, or changes all of it.
insert into identity_providers (org_id, name, issuer, client_id, client_secret, audience, roles_claim, role_map,
                                default_role, required_claims, scopes, set_by, set_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, tp_now())
on conflict (org_id, name) do update
  set issuer = excluded.issuer, client_id = excluded.client_id, client_secret = excluded.client_secret,
      audience = excluded.audience, roles_claim = excluded.roles_claim, role_map = excluded.role_map,
      default_role = excluded.default_role, required_claims = excluded.required_claims, scopes = excluded.scopes,
      set_by = excluded.set_by, set_at = excluded.set_at

-- name: remove_provider
-- Removes a provider; those who signed in with it stay members.
delete from identity_providers where org_id = $1 and name = $2 returning true

-- name: end_sessions_of_issuer
-- Ends what was begun with an issuer that the organization no longer trusts.
with members as (
  select member_id from org_members m
  where m.org_id = $1 and m.issuer = $2
    and not exists (select 1 from identity_providers p where p.org_id = $1 and p.issuer = $2)
), ended as (
  update sessions s set revoked_at = tp_now() from members m where s.member_id = m.member_id and s.revoked_at is null
)
update access_tokens t set revoked_at = tp_now() from members m
where t.member_id = m.member_id and t.created_by = 'sign-in' and t.revoked_at is null

-- name: role_names
-- The roles that an organization has.
select name from org_roles where org_id = $1

-- name: disabled_subjects
-- Members of an issuer that may not come in any more.
select org_id, issuer, subject from org_members where disabled_at is not null and issuer is not null

-- name: roles_of_machines
-- The roles that admins gave to machines, which have others by their claims.
select m.org_id, m.issuer, m.subject, array_agg(g.role) as roles
from org_members m join org_role_memberships g using (member_id)
where m.kind = 'service' and m.issuer is not null and (g.expires_at is null or g.expires_at > tp_now())
group by m.org_id, m.issuer, m.subject

-- name: machine
-- Whoever calls with a JWT, by the name that it has as a member, or would get as one.
select m.member_id, coalesce(m.name, c.name) as name, coalesce(m.kind, 'service') as kind
from (select n.name
      from (select 1 as n, $4::text as name union all select n, $4::text || '#' || n from generate_series(2, 1000) n) n
      where not exists (select 1 from org_members x where x.org_id = $1 and x.name = n.name)
      order by n.n limit 1) c
left join org_members m on m.org_id = $1 and m.issuer = $2 and m.subject = $3

-- name: note_member
-- Notes that a member of an issuer has called.
update org_members set last_seen_at = tp_now() where org_id = $1 and issuer = $2 and subject = $3
returning member_id, name, kind, disabled_at is not null as disabled

-- name: sign_in_member
-- Whoever signed in, or called with a JWT for the first time, as a member. The name may be another member's; then the
-- second one is taken, with a number if that is another's too, as after a change of the provider's issuer. Whoever
-- signs in is a person, also after calls with JWTs.
insert into org_members (org_id, kind, name, issuer, subject, email, created_at, created_by, last_seen_at)
select $1, $7, (
         select c.name
         from (select 0 as n, $2::text as name
               union all select n, $3::text || case when n = 1 then '' else '#' || n end from generate_series(1, 1000) n) c
         where not exists (select 1 from org_members m
                           where m.org_id = $1 and m.name = c.name and (m.issuer, m.subject) is distinct from ($4, $5))
         order by c.n limit 1
       ), $4, $5, $6, tp_now(), 'sign-in', tp_now()
on conflict (org_id, issuer, subject) do update
  set kind = case when excluded.kind = 'user' then 'user' else org_members.kind end,
      email = case when excluded.kind = 'user' then excluded.email else org_members.email end,
      last_seen_at = excluded.last_seen_at
returning member_id, name, kind, disabled_at is not null as disabled

-- name: disabled_of_email
-- Whether a member is disabled that has this address as its name, or to whom an admin gave it.
select exists (
  select 1 from org_members
  where org_id = $1 and disabled_at is not null
    and (lower(name) = lower($2) or (issuer is null and lower(email) = lower($2)))
)

-- name: forget_roles_of_subject
-- Takes away every role that claims gave to a member, if there is such a member; its name.
with member as (
  select member_id, name from org_members where org_id = $1 and issuer = $2 and subject = $3
), forgotten as (
  delete from org_role_memberships g using member m where g.member_id = m.member_id and g.by_claim
)
select name from member

-- name: forget_claimed_roles
-- Takes the roles away that the claims no longer give; those that an admin gave stay.
delete from org_role_memberships where member_id = $1 and by_claim and role <> all($2::text[])

-- name: give_claimed_roles
-- Gives the roles that the claims give, also where an admin gave them for a time that is over.
insert into org_role_memberships as g (org_id, member_id, role, granted_by, granted_at, by_claim)
select $1, $2, r.name, $4, tp_now(), true from org_roles r where r.org_id = $1 and r.name = any($3::text[])
on conflict (member_id, role) do update
  set by_claim = true, expires_at = null, granted_by = excluded.granted_by, granted_at = excluded.granted_at
  where g.expires_at <= tp_now()

-- name: complete
-- Notes that a sign-in is completed, if it was not before.
insert into completed_sign_ins (attempt_hash, org_id, expires_at)
values ($1, $2, tp_now() + interval '1 day') on conflict (attempt_hash) do nothing returning true

-- name: forget_completed
-- Those that no cookie can be valid for any more.
delete from completed_sign_ins where expires_at < tp_now()

-- name: forget_sessions
-- Those that ended a day ago; until then, their refusal names the reason.
delete from sessions where expires_at < tp_now() - interval '1 day'

-- name: add_session
-- A session of a member.
insert into sessions (session_hash, org_id, member_id, csrf_hash, created_at, expires_at, last_seen_at)
values ($1, $2, $3, $4, tp_now(), tp_now() + make_interval(secs => $5::float8), tp_now())

-- name: session
-- A session with its member, and the roles that the member holds now.
select o.org_id, o.slug as org, s.member_id, m.name, m.kind, s.csrf_hash, s.revoked_at is not null as revoked,
       s.expires_at <= tp_now() as expired, s.expires_at, s.last_seen_at < tp_now() - interval '1 minute' as long_unseen,
       m.disabled_at is not null as disabled,
       array(select g.role from org_role_memberships g where g.member_id = s.member_id
             and (g.expires_at is null or g.expires_at > tp_now())) as roles
from sessions s join orgs o using (org_id) join org_members m using (member_id)
where s.session_hash = $1

-- name: note_session
-- Notes that a session is used.
update sessions set last_seen_at = tp_now() where session_hash = $1

-- name: end_session
-- Ends a session.
update sessions set revoked_at = tp_now() where session_hash = $1 and revoked_at is null

-- name: end_token
-- Ends a token, if a sign-in made it.
update access_tokens set revoked_at = tp_now()
where token_hash = $1 and created_by = 'sign-in' and revoked_at is null returning token_id
