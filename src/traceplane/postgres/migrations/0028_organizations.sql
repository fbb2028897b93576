-- Row-level security: a session of the role traceplane_org sees and changes rows of one organization, the one that its
-- setting traceplane.org names. The gateway handles every call in such a session. Whoever owns the tables, as the
-- dispatcher and the commands on the database do, is not restricted.

-- The role belongs to the whole cluster, so another database may be creating it at the same moment.
do $$
begin
  if not exists (select 1 from pg_roles where rolname = 'traceplane_org') then
    begin
      create role traceplane_org nologin;
    exception
      when duplicate_object or unique_violation then null;
      when insufficient_privilege then
        raise exception 'the role traceplane_org does not exist, and % may not create it', current_user
          using hint = format('as a superuser: create role traceplane_org nologin; grant traceplane_org to %I', current_user);
    end;
  end if;
  if not pg_has_role(current_user, 'traceplane_org', 'member') then
    begin
      execute format('grant traceplane_org to %I', current_user);
    exception when insufficient_privilege then
      raise exception '% is not a member of the role traceplane_org', current_user
        using hint = format('as a superuser: grant traceplane_org to %I', current_user);
    end;
  end if;
end $$;

grant usage on schema traceplane to traceplane_org;
grant usage on schema traceplane_hot to traceplane_org;

create function current_org() returns uuid language sql stable parallel safe as $$
  select nullif(current_setting('traceplane.org', true), '')::uuid
$$;

-- For every table with rows of organizations. The condition may ask for a row of a parent: its own policy applies to it.
create procedure belongs_to_org(tables regclass[], condition text) language plpgsql as $$
declare
  one regclass;
begin
  foreach one in array tables loop
    execute format('alter table %s enable row level security', one);
    execute format('create policy of_the_organization on %s to traceplane_org using (%s)', one, replace(condition, 'THIS', one::text));
    execute format('grant select, insert, update, delete on %s to traceplane_org', one);
  end loop;
end $$;

call belongs_to_org('{orgs, dags, datasets, scanner_lists, pipelines, trigger_user_limits, partition_names, secrets}',
  'org_id = (select current_org())');
call belongs_to_org('{access_tokens, query_denials}', 'org = (select slug from orgs)');
call belongs_to_org('{dag_versions, jobs, dag_activations, job_pauses, cron_schedules}',
  'exists (select 1 from dags p where p.dag_id = THIS.dag_id)');
call belongs_to_org('{generations, dag_version_datasets, events, webhook_keys, webhook_refusals, dropped_positions}',
  'exists (select 1 from datasets p where p.dataset_uuid = THIS.dataset_uuid)');
call belongs_to_org('{job_inputs, job_outputs, dag_version_jobs, tasks, task_inputs, job_pressure, job_holds, replays,
  catch_ups, told_positions, told_periods, known_scopes, open_batches, file_sources}',
  'exists (select 1 from jobs p where p.job_id = THIS.job_id)');
call belongs_to_org('{dataset_commits, generation_cursors, generation_schemas, generation_coverage, hot_tables, source_files}',
  'exists (select 1 from generations p where p.generation_id = THIS.generation_id)');
call belongs_to_org('{task_logs, task_reads}', 'exists (select 1 from tasks p where p.task_id = THIS.task_id)');
call belongs_to_org('{executions}', 'exists (select 1 from pipelines p where p.pipeline_id = THIS.pipeline_id)');
call belongs_to_org('{celery_outbox}', 'exists (select 1 from executions p where p.execution_id = THIS.execution_id)');
call belongs_to_org('{secret_versions}', 'exists (select 1 from secrets p where p.secret_id = THIS.secret_id)');
-- The tasks of one message are of one organization. They are written by the statement that writes the message, so its
-- check cannot see them yet; a message about other tasks would be a hint that nobody follows.
call belongs_to_org('{outbox}', 'exists (select 1 from tasks p where p.task_id = THIS.task_ids[1])');
create policy written_with_its_tasks on outbox for insert to traceplane_org with check (true);

-- Numbers of events and others are taken before their rows are written.
grant usage on all sequences in schema traceplane to traceplane_org;
-- Code is stored by the hash of its content: whoever names a bundle has it, or was told its hash.
grant select, insert on code_bundles to traceplane_org;
-- What the machines offer is the platform's, and explains to everyone why a task waits.
grant select on workers to traceplane_org;

-- A view sees with the eyes of whoever reads it, not of its owner.
alter view dead_tasks set (security_invoker = true);
grant select on dead_tasks to traceplane_org;

-- A hot table has the rows of one generation, so one look decides for all of them.
create procedure hot_table_belongs_to_org(generation uuid) language plpgsql as $$
declare
  hot text := format('traceplane_hot.%I', 'g_' || replace(generation::text, '-', ''));
begin
  execute format('alter table %s enable row level security', hot);
  execute format('create policy of_the_organization on %s to traceplane_org using'
                 ' (exists (select 1 from traceplane.generations where generation_id = %L))', hot, generation);
  execute format('grant select on %s to traceplane_org', hot);
end $$;

do $$
declare
  generation uuid;
begin
  for generation in select generation_id from hot_tables loop
    call hot_table_belongs_to_org(generation);
  end loop;
end $$;

-- A deploy creates hot tables, which the platform owns all the same: their rows are written by it alone.
create procedure create_hot_table(generation uuid, columns text, index_columns text, unique_columns text)
language plpgsql security definer set search_path = traceplane as $$
declare
  hot text := format('traceplane_hot.%I', 'g_' || replace(generation::text, '-', ''));
begin
  execute format('create table %s (%s)', hot, columns);
  execute format('create index on %s (%s)', hot, index_columns);
  if unique_columns <> '' then
    execute format('create unique index on %s (%s)', hot, unique_columns);
  end if;
  call hot_table_belongs_to_org(generation);
end $$;

-- People ----------------------------------------------------------------------------------------------------------

-- admin, writer and reader are there in every organization. A role of its own includes one of them, and is named by
-- the read_roles and write_roles of datasets.
create table org_roles (
  org_id uuid not null references orgs,
  name text not null,
  includes text not null check (includes in ('admin', 'writer', 'reader')),
  sees_pii boolean not null default false,
  created_at timestamptz not null default tp_now(),
  created_by text not null,
  primary key (org_id, name),
  check (name not in ('admin', 'writer', 'reader') or (includes = name and created_by = 'traceplane'))
);
insert into org_roles (org_id, name, includes, sees_pii, created_by)
select o.org_id, r, r, r = 'admin', 'traceplane' from orgs o, unnest(array['admin', 'writer', 'reader']) r;

create function add_reserved_roles() returns trigger language plpgsql as $$
begin
  insert into traceplane.org_roles (org_id, name, includes, sees_pii, created_by)
  select new.org_id, r, r, r = 'admin', 'traceplane' from unnest(array['admin', 'writer', 'reader']) r;
  return null;
end $$;
create trigger org_created after insert on orgs for each row execute function add_reserved_roles();

-- A person or a service account. Whoever signs in is known by issuer and subject; the same person in another
-- organization is another member.
create table org_members (
  member_id uuid primary key default uuid7(),
  org_id uuid not null references orgs,
  kind text not null check (kind in ('user', 'service')),
  name text not null,
  issuer text,
  subject text,
  email text,
  created_at timestamptz not null default tp_now(),
  created_by text not null,
  disabled_at timestamptz,
  last_seen_at timestamptz,
  check ((issuer is null) = (subject is null)),
  unique (org_id, member_id),
  unique (org_id, name),
  unique (org_id, issuer, subject)
);

create table org_role_memberships (
  org_id uuid not null references orgs,
  member_id uuid not null,
  role text not null,
  granted_by text not null,
  granted_at timestamptz not null default tp_now(),
  expires_at timestamptz,
  -- Whether a claim of the sign-in gave it, so that the next one may take it away.
  by_claim boolean not null default false,
  primary key (member_id, role),
  foreign key (org_id, member_id) references org_members (org_id, member_id) on delete cascade,
  foreign key (org_id, role) references org_roles (org_id, name) on delete cascade
);

call belongs_to_org('{org_roles, org_members, org_role_memberships}', 'org_id = (select current_org())');

-- A token of a member has its member's roles, or only those of them that the token names; a token of nobody has the
-- roles that it names.
alter table access_tokens
  add column token_id uuid not null default uuid7() unique,
  add column member_id uuid references org_members on delete cascade,
  add column roles text[],
  -- Patterns of dataset names; null: all.
  add column datasets text[],
  add column created_by text not null default 'traceplane',
  -- To the minute.
  add column last_used_at timestamptz,
  drop constraint access_tokens_check,
  add check ((principal = 'user') = (role is not null or roles is not null or member_id is not null)),
  add check (principal = 'user' or (member_id is null and roles is null and datasets is null));
update access_tokens set roles = array[role] where role is not null;

-- A revocation counts at once: whoever holds tokens in memory reads them anew. Noting a use tells nobody.
create function tell_of_access() returns trigger language plpgsql as $$
begin
  perform pg_notify('traceplane_access', '');
  return null;
end $$;
create trigger access_tokens_changed after insert or delete or update of revoked_at, expires_at on access_tokens
  for each statement execute function tell_of_access();
create trigger org_members_changed after delete or update of disabled_at on org_members
  for each statement execute function tell_of_access();
create trigger org_role_memberships_changed after insert or update or delete on org_role_memberships
  for each statement execute function tell_of_access();
create trigger org_roles_changed after insert or update or delete on org_roles
  for each statement execute function tell_of_access();
