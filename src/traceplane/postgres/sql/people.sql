-- Members of an organization, their roles and their tokens, in a session that acts for it.

-- name: roles
-- The organization's roles, and how many members have each.
select r.name, r.includes, r.sees_pii, r.created_at, r.created_by,
       (select count(*) from org_role_memberships g
        where g.org_id = r.org_id and g.role = r.name and (g.expires_at is null or g.expires_at > tp_now()))::int as members
from org_roles r where r.org_id = current_org() order by r.created_by <> 'traceplane', r.name

-- name: define_role
-- A role of the organization's own, or what one means from now on.
insert into org_roles (org_id, name, includes, sees_pii, created_by) values (current_org(), $1, $2, $3, $4)
on conflict (org_id, name) do update set includes = excluded.includes, sees_pii = excluded.sees_pii

-- name: uses_of_role
-- Some of the datasets and secrets that name a role.
(select 'dataset ' || d.dataset_id as named from datasets d
 where d.org_id = current_org() and (d.definition->'read_roles' ? $1 or d.definition->'write_roles' ? $1)
 order by d.dataset_id limit $2)
union all
(select 'secret ' || s.namespace || '/' || s.name from secrets s
 where s.org_id = current_org() and $1 = any(s.roles) order by s.namespace, s.name limit $2)
limit $2

-- name: lock_roles
-- Those of the roles that there are; they stay until the end of the transaction.
select name from org_roles where org_id = current_org() and name = any($1::text[]) order by name for key share

-- name: lock_role_to_delete
-- Waits for tokens that are being issued with the role, so that the next statement sees them.
select from org_roles where org_id = current_org() and name = $1 for update

-- name: delete_role
-- Nobody has it any more, and no token: a later role of the same name is another one.
with deleted as (
  delete from org_roles where org_id = current_org() and name = $1 returning name
), cut as (
  update access_tokens t set roles = array_remove(t.roles, d.name) from deleted d
  where t.org = (select slug from orgs where org_id = current_org()) and d.name = any(t.roles)
)
select name from deleted

-- name: members
-- Everyone of the organization, with the roles that they hold now.
select m.member_id, m.kind, m.name, m.email, m.issuer, m.created_at, m.created_by, m.disabled_at, m.last_seen_at,
       coalesce((select jsonb_agg(jsonb_build_object('role', g.role, 'granted_by', g.granted_by, 'expires_at', g.expires_at,
                                                     'by_claim', g.by_claim) order by g.role)
                 from org_role_memberships g
                 where g.member_id = m.member_id and (g.expires_at is null or g.expires_at > tp_now())), '[]') as roles
from org_members m where m.org_id = current_org() and ($1::text is null or m.name = $1) order by m.name

-- name: add_member
-- A person or a service account, if there is none of this name.
insert into org_members (org_id, kind, name, email, created_by) values (current_org(), $1, $2, $3, $4)
on conflict (org_id, name) do nothing returning member_id

-- name: lock_member
-- One of the organization, until the end of the transaction.
select member_id, disabled_at is not null as disabled from org_members where org_id = current_org() and name = $1 for update

-- name: disable_member
-- It cannot sign in or get tokens until it is enabled again.
update org_members set disabled_at = case when $2::boolean then coalesce(disabled_at, tp_now()) end
where member_id = $1 and (disabled_at is null) = $2::boolean returning name

-- name: revoke_tokens_of_member
-- All that are valid. They stay revoked if the member is enabled again.
update access_tokens set revoked_at = tp_now() where member_id = $1 and revoked_at is null

-- name: end_sessions_of_member
-- All that have not ended.
update sessions set revoked_at = tp_now() where member_id = $1 and revoked_at is null

-- name: grant
-- A role, until then or for good; the last word on it counts.
insert into org_role_memberships (org_id, member_id, role, granted_by, expires_at, by_claim)
values (current_org(), $1, $2, $3, tp_now() + $4::interval, false)
on conflict (member_id, role) do update set granted_by = excluded.granted_by, granted_at = tp_now(),
  expires_at = excluded.expires_at, by_claim = false

-- name: withdraw
-- The member has the role no more.
delete from org_role_memberships where member_id = $1 and role = $2 returning role

-- name: tokens
-- User tokens of the organization that may still be used, newest first; of one member, if asked.
select t.token_id, t.name, m.name as member, t.roles, t.datasets, t.sees_pii, t.created_at, t.created_by, t.expires_at,
       t.last_used_at
from access_tokens t left join org_members m using (member_id)
where t.org = (select slug from orgs where org_id = current_org()) and t.principal = 'user' and t.revoked_at is null
  and (t.expires_at is null or t.expires_at > tp_now()) and ($1::uuid is null or t.member_id = $1)
order by t.token_id desc

-- name: revoke_token
-- Refused from now on; of one member, if asked.
update access_tokens t set revoked_at = tp_now()
where t.token_id = $1 and t.principal = 'user' and t.revoked_at is null and t.org = (select slug from orgs where org_id = current_org())
  and ($2::uuid is null or t.member_id = $2)
returning t.name
