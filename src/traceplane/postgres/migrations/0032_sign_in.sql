-- Sign-in with identity providers, and the sessions of browsers.

create table identity_providers (
  org_id uuid not null references orgs,
  name text not null,
  issuer text not null,
  client_id text not null,
  -- The name of a platform secret; null: the client has none.
  client_secret text,
  -- Of JWTs that machines send; null: it accepts none.
  audience text,
  roles_claim text,
  role_map jsonb not null,
  default_role text,
  required_claims jsonb not null,
  scopes text[] not null,
  set_by text not null,
  set_at timestamptz not null,
  primary key (org_id, name)
);
create trigger identity_providers_changed after insert or update or delete on identity_providers
  for each statement execute function tell_of_access();

-- Who holds the cookie is the member until the session ends.
create table sessions (
  session_hash text primary key,
  org_id uuid not null references orgs,
  member_id uuid not null,
  csrf_hash text not null,
  created_at timestamptz not null,
  expires_at timestamptz not null,
  -- To the minute.
  last_seen_at timestamptz not null,
  revoked_at timestamptz,
  foreign key (org_id, member_id) references org_members (org_id, member_id) on delete cascade
);
create index sessions_of_member on sessions (member_id);
create index sessions_by_expiry on sessions (expires_at);

call belongs_to_org('{identity_providers, sessions}', 'org_id = (select current_org())');

-- A sign-in that a browser has begun can be completed once, also at a provider that accepts a code twice.
-- Only the gateway's own sign-in needs it, so organizations have no rights on it.
create table completed_sign_ins (
  attempt_hash text primary key,
  org_id uuid not null references orgs,
  expires_at timestamptz not null
);
create index completed_sign_ins_by_expiry on completed_sign_ins (expires_at);
