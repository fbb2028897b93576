-- Queries: what was current when, how far history is gone, and who was refused what.

-- Which version of a DAG was active since when. Whatever moves the pointer, the trigger sees it.
create table dag_activations (
  activation_id bigint generated always as identity primary key,
  dag_id uuid not null references dags,
  dag_version_id uuid not null references dag_versions,
  activated_at timestamptz not null default tp_now()
);
create index dag_activations_by_time on dag_activations (dag_id, activated_at desc, activation_id desc);
insert into dag_activations (dag_id, dag_version_id, activated_at)
select d.dag_id, v.dag_version_id, v.created_at
from dags d join dag_versions v on v.dag_version_id = d.active_version_id;

create function record_activation() returns trigger language plpgsql as $$
begin
  insert into traceplane.dag_activations (dag_id, dag_version_id, activated_at)
  values (new.dag_id, new.active_version_id, traceplane.tp_now());
  return null;
end $$;
create trigger dag_activated after insert or update of active_version_id on dags
  for each row when (new.active_version_id is not null) execute function record_activation();

-- Until when replaced commits of a generation were forgotten: there is no reading it as of an earlier time.
alter table generation_cursors add column forgotten_until timestamptz;

-- Queries ask anew which commits are live, but keep what they hold; what is hidden of them is all that can change.
create index dataset_commits_hidden on dataset_commits (generation_id, commit_id)
  where hidden is not null and superseded_by is null;

-- Queries that the gate refused; never their text.
create table query_denials (
  denial_id bigint generated always as identity primary key,
  denied_at timestamptz not null default tp_now(),
  org text not null,
  principal text not null,
  role text not null,
  reason text not null,
  query_hash text not null
);
create index query_denials_by_time on query_denials (denied_at);

-- A user token may see columns that are marked as personal data. Admins do in any case.
alter table access_tokens add column sees_pii boolean not null default false;
