-- Who changed what, and who was refused what. Rows are written by the transaction that makes the change, and stay as
-- they are until their history ends.
create table audit_log (
  audit_id bigint generated always as identity primary key,
  org_id uuid not null references orgs,
  at timestamptz not null default tp_now(),
  principal text not null,
  kind text not null check (kind in ('user', 'service', 'token', 'worker', 'operator')),
  -- A route of the API, or a command on the database.
  action text not null,
  -- The names of what it was about; no values.
  object jsonb not null,
  remote text,
  request_id text,
  -- ok, or the code of the refusal.
  outcome text not null,
  -- Equal refusals within a second are one row.
  times integer not null default 1
);
create index audit_log_of_org on audit_log (org_id, audit_id);

call belongs_to_org('{audit_log}', 'org_id = (select current_org())');
revoke update, delete on audit_log from traceplane_org;

create function keep_audit_log() returns trigger language plpgsql as $$
begin
  if tg_op = 'DELETE' and current_setting('traceplane.history_ends', true) = 'audit_log' then
    return old;
  end if;
  raise exception 'audit_log is append-only';
end $$;
create trigger audit_log_is_kept before update or delete on audit_log for each row execute function keep_audit_log();
create trigger audit_log_is_not_emptied before truncate on audit_log for each statement execute function keep_audit_log();
