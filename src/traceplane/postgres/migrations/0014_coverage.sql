-- What a generation holds, as sets of positions: of every commit, and of every task that was done and had nothing to
-- commit. A set without gaps is a few bytes, however many scopes it stands for.

-- A row for each bucket of 65,536 positions keeps a set with many gaps cheap to change. What reaches over the end of a
-- bucket is kept whole, in a row of its own.
create table generation_coverage (
  generation_id uuid not null,
  bucket bigint not null,
  positions int8multirange not null,
  primary key (generation_id, bucket)
) with (fillfactor = 50);

create function coverage_bucket(first bigint, last bigint) returns bigint language sql immutable parallel safe as $$
  select case when first >> 16 = last >> 16 then first >> 16 else -9223372036854775808 end
$$;

-- Both ends belong to it. A range has no end that would be the highest position there is.
create function coverage_range(first bigint, last bigint) returns int8range language sql immutable parallel safe as $$
  select int8range(first, nullif(last, 9223372036854775807), '[]')
$$;

create function coverage_of(generation uuid) returns int8multirange language sql stable parallel safe as $$
  select coalesce(range_agg(r), '{}') from generation_coverage c, unnest(c.positions) r where c.generation_id = generation
$$;

insert into generation_coverage (generation_id, bucket, positions)
select generation_id, coverage_bucket(range_start, range_end), range_agg(coverage_range(range_start, range_end))
from dataset_commits group by 1, 2;

-- The size of the ranges that a job is fed with: those of the aggregator that stands nearest before its first input, if
-- there is one and its ranges are not split again.
create function range_size_of(job uuid) returns bigint language sql stable as $$
  with recursive upstream as (
    select job as job_id, 0 as depth, null::text as grouping, null::bigint as size
    union all
    select p.job_id, u.depth + 1, case when p.runtime = 'dispatcher' then p.operator end,
           case when p.runtime = 'dispatcher' and p.operator = 'aggregator' then (p.definition->'config'->>'size')::bigint end
    from upstream u join job_inputs i on i.job_id = u.job_id and i.input_index = 0
    join job_outputs x on x.generation_id = i.generation_id join jobs p on p.job_id = x.job_id and p.routed
    where u.depth < 1000 and coalesce(u.grouping, 'pass') = 'pass'
  )
  select size from upstream order by depth desc limit 1
$$;

-- A version that may serve less than the one whose place it takes: somebody said so.
alter table dag_versions add column drop_missing boolean not null default false;

-- Generations that serve, or served until a rollback, and jobs that are to make all that these hold. Events tell a job
-- of what it reads; of work that no event asked for, a backfill, nobody else would tell it.
create table catch_ups (
  job_id uuid not null,
  generation_id uuid not null,
  primary key (job_id, generation_id)
);
