-- File sources: which of them are due, the files that were there, and the partitions that have changed.

-- name: take
-- Sources that are due, for this pass alone. A build lists the files of its own generations too.
with due as (
  select j.job_id from jobs j left join file_sources f using (job_id)
  where j.source_kind = 'file' and j.routed
    and (f.job_id is null or (f.due_at <= tp_now() and f.held_until <= tp_now()))
    and not exists (select 1 from job_pauses p where p.dag_id = j.dag_id and p.job = j.name)
  order by f.due_at nulls first, j.job_id limit $3
), taken as (
  insert into file_sources as f (job_id, due_at, holder, held_until)
  select job_id, tp_now(), $1::uuid, tp_now() + $2::interval from due order by job_id
  on conflict (job_id) do update set holder = excluded.holder, held_until = excluded.held_until
  where f.due_at <= tp_now() and f.held_until <= tp_now()
  returning job_id
)
select tp_now() as started_at, j.job_id, o.slug as org, g.name as dag, coalesce(j.definition->>'generated_for', j.name) as job,
       j.definition->'config' as config, d.dataset_id, x.generation_id, v.definition->'partitions' as partitions,
       (select f.job_id from job_outputs f where f.generation_id = x.generation_id order by f.job_id limit 1) as voice
from taken t join jobs j using (job_id) join dags g using (dag_id) join orgs o using (org_id)
join job_outputs x on x.job_id = j.job_id join datasets d on d.dataset_uuid = x.dataset_uuid
cross join lateral (select definition from dag_version_datasets v where v.generation_id = x.generation_id limit 1) v

-- name: hold
-- Whether a pass still has its source, which it then keeps for longer; nobody else takes it until the transaction ends.
update file_sources f set held_until = tp_now() + $3::interval
from jobs j where f.job_id = $1 and f.holder = $2 and j.job_id = f.job_id and j.routed
returning 1

-- name: see
-- A page of a listing: files that are new or have changed are noted as they are now, and those that wait as still there.
with seen as (
  insert into source_files as f
    (generation_id, path, bytes, version, modified_at, position, refusal, seen_at, listed_at, announced)
  select $1, l.path, l.bytes, l.version, l.modified_at, l.position, l.refusal, tp_now(), tp_now(), false
  from unnest($2::text[], $3::bigint[], $4::text[], $5::timestamptz[], $6::bigint[], $7::text[])
    as l (path, bytes, version, modified_at, position, refusal)
  left join lateral (
    select s.bytes, s.version, s.position from source_files s
    where s.generation_id = $1 and s.path = l.path collate "C" and s.announced
    offset 0  -- a probe of the primary key for each file, however many there are
  ) s on true
  where (s.bytes, s.version, s.position) is distinct from (l.bytes, l.version, l.position)
  order by l.path collate "C"
  on conflict (generation_id, path) do update set bytes = excluded.bytes, version = excluded.version,
    modified_at = excluded.modified_at, position = excluded.position, refusal = excluded.refusal, announced = false,
    listed_at = excluded.listed_at,
    seen_at = case when f.bytes = excluded.bytes and f.version = excluded.version
                     and f.position is not distinct from excluded.position then f.seen_at else excluded.seen_at end
  returning seen_at = listed_at as is_new
)
select count(*) from seen where is_new

-- name: drop_unlisted
-- Files that changed, or were refused, and are gone since: nobody will read them. One that readers know stays, and is
-- new if it comes back.
with gone as (
  delete from source_files
  where generation_id = $1 and not announced and listed_at < $2::timestamptz and announced_position is null
)
update source_files set announced = true, version = '', position = announced_position, refusal = null
where generation_id = $1 and not announced and listed_at < $2::timestamptz and announced_position is not null

-- name: changed
-- Partitions that have a file that is new, has changed or has left, and none that changed since a moment.
select c.position from (
  select position, seen_at from source_files where generation_id = $1 and not announced and position is not null
  union all
  select announced_position, seen_at from source_files
  where generation_id = $1 and not announced and announced_position is distinct from position
) c where c.position is not null
group by c.position having max(c.seen_at) <= $2::timestamptz
order by c.position limit $3

-- name: announce
-- Files are where readers will find them: they have left these partitions, or have come to them.
update source_files set
  announced = coalesce(position = any($2::bigint[]), false),
  announced_position = case when position = any($2::bigint[]) then position
                            when announced_position = any($2::bigint[]) then null else announced_position end
where generation_id = $1 and not announced
  and (position = any($2::bigint[]) or announced_position = any($2::bigint[]))

-- name: sizes
-- How many files these partitions have, and how many bytes.
select p.position, count(f.path) as files, coalesce(sum(f.bytes), 0)::bigint as bytes
from unnest($2::bigint[]) as p (position)
left join source_files f on f.generation_id = $1 and f.position = p.position
group by p.position

-- name: settle
-- The end of a pass: when the next one begins, and what this one found. Sooner if files are waiting to be announced.
update file_sources set holder = null, held_until = tp_now(), problem = $3,
  due_at = tp_now() + case when exists (select 1 from source_files s where s.generation_id = $4 and not s.announced
                                         and s.position is not null)
                           then least($5::interval, $6::interval) else $5::interval end,
  listed_at = case when $3::text is null then tp_now() else listed_at end,
  matched = coalesce($7, matched), ignored = coalesce($8, ignored)
where job_id = $1 and holder = $2

-- name: forget
-- The files of generations that nobody reads any more.
delete from source_files where generation_id = $1

-- name: of_org
-- The file sources of an organization that serve.
select g.name as dag, coalesce(j.definition->>'generated_for', j.name) as job, d.dataset_id, j.definition->'config' as config,
       f.listed_at, f.problem, coalesce(f.matched, 0) as matched, coalesce(f.ignored, 0) as ignored, f.due_at,
       (select count(*) from source_files s where s.generation_id = x.generation_id and not s.announced
          and s.position is not null) as waiting,
       coalesce((select jsonb_agg(to_jsonb(r) order by r.count desc, r.code) from (
          select s.refusal as code, count(*) as count, min(s.path) as example from source_files s
          where s.generation_id = x.generation_id and not s.announced and s.refusal is not null group by 1 limit 20) r), '[]') as refusals
from jobs j join dags g using (dag_id) join orgs o using (org_id)
join job_outputs x on x.job_id = j.job_id join datasets d on d.dataset_uuid = x.dataset_uuid
left join file_sources f on f.job_id = j.job_id
where o.slug = $1 and j.source_kind = 'file' and j.routed and not j.building
order by dag, job

-- name: clock
-- The database's clock.
select tp_now()
