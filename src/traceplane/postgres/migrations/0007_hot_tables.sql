-- Hot datasets: rows in Postgres, in a table for each generation, committed with the catalog's own rows.

-- Their tables stand apart from the catalog's, so that who reads them can be let in here and nowhere else.
create schema if not exists traceplane_hot;

-- What the table of a generation holds. `unique_key` is empty where a commit replaces its scope. Whoever commits to a
-- generation locks its row before a commit id is drawn: ids of one hot generation are in the order of its commits.
create table hot_tables (
  generation_id uuid primary key references generations,
  columns jsonb not null,
  position text not null,
  unique_key text[] not null
);

-- The columns that a job reads of an input; none: all of them.
alter table job_inputs add column columns jsonb not null default '[]';
