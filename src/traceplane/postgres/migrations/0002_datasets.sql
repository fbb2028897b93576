-- The catalog of the data plane: which commits are read, what their files hold, and what is work on history.

-- A commit of a `replace` job takes the place of those within its scope; they stay until their files are collected.
alter table dataset_commits
  add column columns jsonb,
  add column superseded_by bigint,
  add column superseded_at timestamptz,
  add check ((superseded_by is null) = (superseded_at is null));
-- Readers look at live commits only, so the index over all of them gives way to one over these.
create index dataset_commits_live on dataset_commits (generation_id, range_start, commit_id) where superseded_by is null;
create index dataset_commits_superseded on dataset_commits (superseded_at, commit_id) where superseded_by is not null;
drop index dataset_commits_by_scope;

-- What a generation's files have in common: every column that any of them has, in the widest of its types.
-- `revision` lets a commit notice that another one extended it at the same moment.
create table generation_schemas (
  generation_id uuid primary key,
  columns jsonb not null,
  revision int not null,
  updated_at timestamptz not null
);

-- A source that starts again asks for what it said last about its newest positions.
create index events_by_cursor on events (generation_id, range_start, event_id) where partition_key is null;

-- Work on history, asked for by hand or caused by such work. Unlike `priority` it says where the work comes from.
alter table tasks add column backfill boolean not null default false;
