-- Which processes of the platform there are, and when each was last there. What a crash of Postgres takes is written
-- anew within seconds.
create unlogged table processes (
  process_id uuid primary key,
  kind text not null,
  host text not null,
  pid int not null,
  version text not null,
  started_at timestamptz not null,
  seen_at timestamptz not null
);
grant select on processes to traceplane_org;
