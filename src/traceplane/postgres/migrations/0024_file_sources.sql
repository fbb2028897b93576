-- File sources: which of them are listed when, and the files that were there.

alter table jobs drop constraint jobs_source_kind_check, add constraint jobs_source_kind_check
  check (source_kind in ('manual', 'cron', 'webhook', 'always_on', 'pipeline', 'file'));
-- Dispatchers look for them every second.
create index jobs_of_files on jobs (job_id) where source_kind = 'file' and routed;

-- When a source is listed next, and what the last listing found.
create table file_sources (
  job_id uuid primary key references jobs,
  due_at timestamptz not null,
  -- The pass that lists it now. Until held_until nobody else does; a pass that is slower finds its token replaced.
  holder uuid,
  held_until timestamptz not null,
  -- The end of the last complete listing, and how many files it found: those with a matching name, and others.
  listed_at timestamptz,
  matched bigint not null default 0,
  ignored bigint not null default 0,
  -- Why the last listing failed.
  problem text
);

-- The files of a generation as they were last listed. They stay when their partition is dropped: a file is announced
-- once, not again whenever it is found.
create table source_files (
  generation_id uuid not null,
  path text collate "C" not null,
  bytes bigint not null,
  version text not null,
  modified_at timestamptz not null,
  -- The partition that its name says. Null: there is none, for this reason.
  position bigint,
  refusal text,
  -- When it was first listed as it is; until it is announced, also when last.
  seen_at timestamptz not null,
  listed_at timestamptz not null,
  -- Whether readers see it as it is, at announced_position.
  announced boolean not null,
  announced_position bigint,
  check ((position is null) = (refusal is not null)),
  primary key (generation_id, path)
);
create index source_files_by_position on source_files (generation_id, position);
create index source_files_unannounced on source_files (generation_id, position) where not announced;
