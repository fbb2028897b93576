-- Versions of DAGs: built beside the serving one, activated in a single transaction, and rolled back the same way.

-- name: lock
-- A DAG and its versions, locked so that changes of its pointers take turns.
select d.dag_id, a.number as active, b.dag_version_id as building_id, b.number as building
from dags d join orgs o using (org_id) left join dag_versions a on a.dag_version_id = d.active_version_id
left join dag_versions b on b.dag_id = d.dag_id and b.state = 'building'
where o.slug = $1 and d.name = $2 for update of d

-- name: by_number
-- One version of a DAG; without a number, the previously active one.
select v.dag_version_id, v.number, v.state from dag_versions v
where v.dag_id = $1 and case when $2::int is not null then v.number = $2
  else v.state = 'retired' and v.activated_at is not null end
order by v.activated_at desc nulls last, v.number desc limit 1

-- name: building
-- Versions being built, and whether their cutover is manual.
select o.slug as org, d.name as dag, v.dag_version_id, v.manual_cutover
from dag_versions v join dags d using (dag_id) join orgs o using (org_id) where v.state = 'building'

-- name: replays
-- Jobs with past scopes that are not tasks yet; this transaction locks one of them.
select r.job_id, r.generation_id, r.everything, r.told_through, j.routed
from replays r join jobs j using (job_id) order by r.job_id, r.generation_id limit 1 for update of r skip locked

-- name: add_replays
-- Replays of generations' past events for jobs, from the beginning.
insert into replays (job_id, generation_id, everything)
select distinct on (r.job_id, r.generation_id) r.job_id, r.generation_id, $3
from unnest($1::uuid[], $2::uuid[]) as r (job_id, generation_id)
on conflict (job_id, generation_id) do update
set everything = replays.everything or excluded.everything, told_through = null

-- name: replay
-- A page of tasks of a job for the last event of each live scope of a generation, ordered by start.
with starts as materialized (
  select range_start from (
    (select distinct range_start from events
     where generation_id = $2 and partition_key is null and range_start > coalesce($3::bigint, -9223372036854775808)
     order by range_start limit $4)
    union
    (select distinct range_start from events
     where generation_id = $2 and partition_key is not null and range_start > coalesce($3::bigint, -9223372036854775808)
     order by range_start limit $4)
  ) s order by range_start limit $4
), page as materialized (
  select distinct on (e.scope_key) e.* from starts s cross join lateral (
    select event_id, kind, partition_key, range_start, range_end, scope_key from events
    where generation_id = $2 and range_start = s.range_start and partition_key is null
    union all
    select event_id, kind, partition_key, range_start, range_end, scope_key from events
    where generation_id = $2 and range_start = s.range_start and partition_key is not null
  ) e order by e.scope_key, e.event_id desc
), dropped as materialized (
  select coalesce(dropped_by_job($1), '{}') as positions
), since as materialized (  -- what the job behind an aggregator had received before
  select max(event_id) as event_id from aggregators_added where job_id = $1 and generation_id = $2
), drafts as materialized (
  select uuid7() as task_id, p.* from page p cross join dropped d cross join since
  where not d.positions @> coverage_range(p.range_start, p.range_end) and (not $5::boolean or exists (select 1 from dataset_commits c where c.generation_id = $2
           and c.range_start = p.range_start and c.scope_key = p.scope_key and c.superseded_by is null offset 0)
         or exists (select 1 from compacted_scopes s join dataset_commits c using (commit_id)
           where s.generation_id = $2 and s.range_start = p.range_start and s.scope_key = p.scope_key
             and c.superseded_by is null
             and not coalesce(c.hidden, '{}') @> coverage_range(s.range_start, s.range_end) offset 0))
    and ($6::boolean or p.event_id > coalesce(since.event_id, 0) and not exists (select 1 from task_inputs i left join tasks t using (task_id)  -- none: it was completed long ago
           where i.event_id = p.event_id and i.job_id = $1 and t.state is distinct from 'canceled'
             and not coalesce(t.stage = 1 and t.cancel_requested, false) offset 0))  -- its worker is about to give it up
  order by p.range_start
), created as (
  insert into tasks (task_id, job_id, state, priority, backfill, kind, partition_key, range_start, range_end,
                     created_at, ready_at)
  select task_id, $1, 'queued', 1, true, kind, partition_key, range_start, range_end, tp_now(), tp_now() from drafts
), lineage as (
  insert into task_inputs (event_id, job_id, task_id) select event_id, $1, task_id from drafts
  on conflict (event_id, job_id) do update set task_id = excluded.task_id
)
select (select count(*) from starts) as starts, (select max(range_start) from starts) as last,
       (select count(*) from drafts) as tasks

-- name: has_commits
-- Whether a generation has commits, which define its scopes; one that only forwards events has none.
select exists (select 1 from generation_cursors where generation_id = $1)

-- name: advance_replay
-- Stores how far a replay is; a finished one is deleted.
with gone as (delete from replays where job_id = $1 and generation_id = $2 and $4::boolean)
update replays set told_through = $3 where job_id = $1 and generation_id = $2 and not $4::boolean

-- name: forget_replays
-- Deletes replays for jobs that receive no events.
delete from replays where job_id = any($1::uuid[])

-- name: missing
-- What a version being built still lacks. A scope that the serving job has not completed either is not missing, nor is one
-- whose task is dead and that nobody has: it stays dead, and readers lose nothing.
with built as materialized (
  select j.job_id, j.activation, j.runtime, s.job_id as serving from dag_version_jobs v join jobs j using (job_id)
  left join lateral (  -- of the same name, or the one that writes its datasets now, if it was renamed
    select s.job_id from jobs s
    where s.dag_id = j.dag_id and s.routed and not s.building and (s.name = j.name or exists (
      select 1 from job_outputs o join datasets d using (dataset_uuid)
      join job_outputs x on x.generation_id = d.current_generation_id where o.job_id = j.job_id and x.job_id = s.job_id))
    order by s.name = j.name desc, s.job_id limit 1
  ) s on true
  where v.dag_version_id = $1 and j.building
), pending as materialized (  -- what the serving jobs have not finished either
  select b.serving as job_id, o.scope_key from (select distinct serving from built) b cross join lateral (
    select scope_key from tasks where job_id = b.serving and (stage = 0 or stage = 1) offset 0) o
), served as materialized (  -- what readers have of what these jobs write, by the same periods
  select b.job_id, range_agg(p) as positions
  from built b join job_outputs o using (job_id) join datasets d using (dataset_uuid)
  join dag_version_datasets w on w.dag_version_id = $1 and w.dataset_uuid = d.dataset_uuid
  cross join lateral unnest(coverage_of(d.current_generation_id)) p
  where b.runtime <> 'dispatcher' and d.current_generation_id is not null
  group by b.job_id
  having bool_and(same_periods(d.definition->'partitions', w.definition->'partitions'))
)
select
  (select count(*) from replays r join built using (job_id)) as replays,
  (select count(*) from (
     select 1 from built b cross join lateral (
       select t.scope_key from tasks t where t.job_id = b.job_id and (t.stage = 0 or t.stage = 1) offset 0) t
     where b.activation = 'reactive' and ((b.serving, t.scope_key) in (select job_id, scope_key from pending)) is not true
     limit 1000) u) as unfinished,
  (select count(*) from (
     select 1 from built b join tasks t on t.job_id = b.job_id and t.stage = 3
     where not exists (select 1 from tasks o where o.job_id = b.serving and o.scope_key = t.scope_key and o.stage = 3 offset 0)
       and not exists (
         select 1 from served s where s.job_id = b.job_id and not s.positions && coverage_range(t.range_start, t.range_end)
           and ((b.serving, t.scope_key) in (select job_id, scope_key from pending)) is not true)
     limit 1000) d) as dead,
  (select drop_missing from dag_versions where dag_version_id = $1) as drop_missing

-- name: sources_behind
-- Sources of a version that is being built whose last position is before that of the serving one: the next position
-- that they have to emit.
select j.name as job, d.dataset_id, n.position
from dag_version_jobs v join jobs j using (job_id) join job_outputs o using (job_id) join datasets d using (dataset_uuid)
cross join lateral (
  select range_start as position from events
  where generation_id = d.current_generation_id and partition_key is null
    and range_start > coalesce((select max(range_start) from events
                                where generation_id = o.generation_id and partition_key is null), -1)
  order by range_start limit 1
) n
join dag_version_datasets w on w.dag_version_id = $1 and w.dataset_uuid = d.dataset_uuid
  and same_periods(d.definition->'partitions', w.definition->'partitions')
where v.dag_version_id = $1 and j.building and j.activation = 'source' order by j.name, d.dataset_id

-- name: replaces
-- Whether a version has another generation of a serving dataset; virtual datasets have nothing to build.
select exists (
  select 1 from dag_version_datasets v join datasets d using (dataset_uuid)
  where v.dag_version_id = $1 and d.current_generation_id <> v.generation_id and v.definition->>'sql' is null)

-- name: point
-- Moves every pointer of a DAG to one version, in one statement.
with gone as (
  update datasets d set current_generation_id = null
  where d.dag_id = $1 and d.current_generation_id is not null
    and not exists (select 1 from dag_version_datasets v where v.dag_version_id = $2 and v.dataset_uuid = d.dataset_uuid)
), moved as (
  update datasets d set current_generation_id = v.generation_id, definition = v.definition
  from dag_version_datasets v where v.dag_version_id = $2 and d.dataset_uuid = v.dataset_uuid
), left_behind as (
  update dag_versions set state = 'retired', retired_at = tp_now() where dag_id = $1 and state = 'active' and dag_version_id <> $2
)
update dags set active_version_id = $2 where dag_id = $1

-- name: activate
-- The version that the pointers are at.
update dag_versions set state = 'active', activated_at = tp_now(), retired_at = null where dag_version_id = $1

-- name: unroute
-- Jobs that are not of the version receive no more events.
update jobs j set routed = false, building = false, revision = revision + 1
where j.dag_id = $1 and j.routed
  and not exists (select 1 from dag_version_jobs v where v.dag_version_id = $2 and v.job_id = j.job_id)
returning j.job_id

-- name: route
-- Makes the jobs of a version serve, metered and configured as it says; returns those that missed events since they last served.
with serving as materialized (
  select v.*, j.routed from dag_version_jobs v join jobs j using (job_id) where v.dag_version_id = $1
), changed as (
  update jobs j set routed = true, building = false, priority = s.priority, max_concurrency = s.max_concurrency,
    dispatch_window = s.dispatch_window, max_queue_depth = s.max_queue_depth, max_queue_age = s.max_queue_age,
    timeout = s.timeout, lease = s.lease, max_attempts = s.max_attempts, retry_base = s.retry_base,
    retry_max = s.retry_max, network = s.network, backfill_concurrency = s.backfill_concurrency,
    function = s.function, requires = s.requires, secrets = s.secrets, definition = j.definition || s.in_place, revision = j.revision + 1
  from serving s where j.job_id = s.job_id
    and (j.routed, not j.building, j.priority, j.max_concurrency, j.dispatch_window, j.max_queue_depth, j.max_queue_age,
         j.timeout, j.lease, j.max_attempts, j.retry_base, j.retry_max, j.network,
         j.backfill_concurrency, j.function, j.requires, j.secrets, j.definition)
      is distinct from (true, true, s.priority, s.max_concurrency, s.dispatch_window, s.max_queue_depth, s.max_queue_age,
         s.timeout, s.lease, s.max_attempts, s.retry_base, s.retry_max, s.network,
         s.backfill_concurrency, s.function, s.requires, s.secrets, j.definition || s.in_place)
)
select job_id from serving where not routed

-- name: replay_inputs
-- Replays of what jobs read, from the beginning, without the events they received before.
insert into replays (job_id, generation_id, everything)
select distinct job_id, generation_id, false from job_inputs where job_id = any($1::uuid[]) and role <> 'reads'
on conflict (job_id, generation_id) do update set told_through = null

-- name: follow_external
-- Jobs of a version read what other DAGs serve now, which may have moved while the version was retired.
with moved as (
  update job_inputs i set generation_id = d.current_generation_id
  from dag_version_jobs v, datasets d
  where v.dag_version_id = $2 and i.job_id = v.job_id and d.dataset_uuid = i.dataset_uuid and d.dag_id <> $1
    and d.current_generation_id is not null and i.generation_id <> d.current_generation_id
  returning i.job_id, i.input_index, i.generation_id, i.role
), kept as (
  insert into past_job_inputs (job_id, name, generation_id, columns, virtual)
  select i.job_id, i.name, coalesce(g.data_generation_id, g.generation_id), i.columns,
         case when i.name like '#%' then j.definition->'virtual' end
  from moved m join job_inputs i using (job_id, input_index) join generations g on g.generation_id = i.generation_id
  join jobs j on j.job_id = i.job_id
  where i.role <> 'triggers' on conflict do nothing
)
select job_id, generation_id from moved where role <> 'reads'

-- name: follow
-- Jobs of other DAGs that read datasets about to move read the new generations from now on, including their past.
with moved as materialized (
  select d.current_generation_id as old, v.generation_id as new
  from datasets d join dag_version_datasets v using (dataset_uuid)
  where v.dag_version_id = $2 and d.current_generation_id <> v.generation_id
), followers as materialized (
  select i.job_id, i.input_index, i.role, m.old, m.new from moved m join job_inputs i on i.generation_id = m.old
  join jobs j using (job_id) where j.routed and j.dag_id <> $1 and j.operator <> all($3::text[])  -- which run once, on what they read
), inputs as (
  update job_inputs i set generation_id = f.new from followers f where i.job_id = f.job_id and i.input_index = f.input_index
), grouped as (
  update generations g set data_generation_id = m.new from moved m, datasets d
  where g.data_generation_id = m.old and d.dataset_uuid = g.dataset_uuid and d.dag_id <> $1
  returning g.generation_id, m.old
), kept as (  -- as the rows of these are, until they are computed again
  insert into past_job_inputs (job_id, name, generation_id, columns, virtual)
  select i.job_id, i.name, coalesce(g.data_generation_id, p.old), i.columns, case when i.name like '#%' then j.definition->'virtual' end
  from (select job_id, input_index, old from followers
        union select i.job_id, i.input_index, g.old from grouped g join job_inputs i using (generation_id)) p
  join job_inputs i using (job_id, input_index) join jobs j on j.job_id = i.job_id
  join generations g on g.generation_id = p.old
  where i.role <> 'triggers' on conflict do nothing
), revised as (
  update jobs set revision = revision + 1
  where job_id in (select job_id from followers union select i.job_id from job_inputs i join grouped using (generation_id))
)
select distinct job_id, new as generation_id from followers where role <> 'reads'

-- name: abort
-- A version that will never serve.
update dag_versions set state = 'aborted', retired_at = tp_now() where dag_version_id = $1 and state = 'building'

-- name: stop_building
-- Its own jobs receive no more events.
update jobs j set routed = false, building = false, revision = revision + 1
from dag_version_jobs v where v.dag_version_id = $1 and v.job_id = j.job_id and j.building
returning j.job_id

-- name: delete
-- Deletes a DAG: its datasets are no longer found, its jobs receive no events, and no version can serve again. Its data
-- is collected like that of abandoned versions.
with gone as (
  update jobs set routed = false, building = false, revision = revision + 1 where dag_id = $1 and routed returning job_id
), pointers as (
  update datasets set current_generation_id = null where dag_id = $1 and current_generation_id is not null
), given_up as (
  update dag_versions set state = 'aborted', retired_at = tp_now()
  where dag_id = $1 and state in ('building', 'active', 'retired')
), inactive as (
  update dags set active_version_id = null where dag_id = $1
)
select job_id from gone

-- name: expire_results
-- Expires query results older than a given age: they are no longer found, and their data is collected like that of
-- abandoned versions.
with old as materialized (
  select d.dag_id, v.dag_version_id, j.job_id
  from jobs j join dag_version_jobs m using (job_id) join dag_versions v using (dag_version_id)
  join dags d on d.active_version_id = v.dag_version_id
  where j.operator = any($2::text[]) and j.routed and v.created_at < tp_now() - $1::interval
  order by d.dag_id for update of d
), jobs_gone as (
  update jobs j set routed = false, revision = revision + 1 from old where j.job_id = old.job_id
), pointers as (
  update datasets x set current_generation_id = null from old where x.dag_id = old.dag_id
), inactive as (
  update dags d set active_version_id = null from old where d.dag_id = old.dag_id
)
update dag_versions v set state = 'aborted', retired_at = tp_now() from old
where v.dag_version_id = old.dag_version_id returning v.dag_version_id

-- name: old
-- Versions that are no longer needed: abandoned, or not among the last that served before the active one.
select dag_version_id, dag, number from (
  select v.dag_version_id, d.name as dag, v.number, v.state, v.retired_at,
         row_number() over (partition by v.dag_id, v.state order by v.retired_at desc) as age
  from dag_versions v join dags d using (dag_id) where v.state in ('retired', 'aborted')
) v where v.retired_at < tp_now() - $1::interval and (v.state = 'aborted' or v.age > $2)
order by dag, number

-- name: give_up
-- Marks versions that cannot serve again, since their data is about to be deleted.
update dag_versions set state = 'collected' where dag_version_id = any($1::uuid[]) and state in ('retired', 'aborted')

-- name: forgotten_generations
-- Generations with data that no version can serve any more, if these versions are given up too.
select distinct v.generation_id, exists (select 1 from hot_tables h where h.generation_id = v.generation_id) as hot
from dag_version_datasets v join dag_versions w using (dag_version_id)
where (w.state = 'collected' or w.dag_version_id = any($1::uuid[]))
  and not exists (select 1 from dag_version_datasets o join dag_versions x using (dag_version_id)
    where o.generation_id = v.generation_id and x.state <> 'collected' and x.dag_version_id <> all($1::uuid[]))
  and (exists (select 1 from dataset_commits c where c.generation_id = v.generation_id)
    or exists (select 1 from hot_tables h where h.generation_id = v.generation_id))

-- name: list
-- The versions of a DAG, newest first, with their existing data: scopes and rows of the datasets that have another
-- generation than the active version.
select v.number, v.state, v.manual_cutover, v.created_at, v.activated_at, v.dag_version_id
from dag_versions v join dags d using (dag_id) join orgs o using (org_id)
where o.slug = $1 and d.name = $2 order by v.number desc limit $3

-- name: progress
-- Per dataset that is rebuilt by the same periods: the live scopes of the serving generation, and how many of them the new
-- one has too.
select d.dataset_id, s.built, s.serving
from dag_version_datasets v join datasets d using (dataset_uuid)
join job_outputs x on x.generation_id = v.generation_id join jobs j using (job_id)
cross join lateral (
  select range_agg(int8range(c.range_start, least(c.range_end, 9223372036854775806) + 1)) as positions
  from dataset_commits c where c.generation_id = v.generation_id and c.superseded_by is null
) n cross join lateral (
  select count(*) as serving,
         count(*) filter (where n.positions @> int8range(c.range_start, least(c.range_end, 9223372036854775806) + 1)) as built
  from live_scopes(d.current_generation_id) c
) s
where v.dag_version_id = $1 and j.building and j.runtime <> 'dispatcher' and j.activation = 'reactive'
  and same_periods(d.definition->'partitions', v.definition->'partitions')
order by d.dataset_id

-- name: weight
-- Scopes, rows and bytes of datasets, and how many events their sources have emitted. Other jobs' events are not
-- counted: they can be derived again.
select d.dataset_id, c.scopes, c.rows, c.bytes, e.events
from datasets d join orgs o using (org_id)
cross join lateral (
  select (select count(*) from live_scopes(d.current_generation_id)) as scopes,
         least(coalesce(sum(row_count), 0), 9223372036854775807)::bigint as rows,
         least(coalesce(sum(bytes), 0), 9223372036854775807)::bigint as bytes
  from dataset_commits where generation_id = d.current_generation_id and superseded_by is null
) c
cross join lateral (
  select count(*) as events from (
    select 1 from events where generation_id = d.current_generation_id and partition_key is null
    union all
    select 1 from events where generation_id = d.current_generation_id and partition_key is not null
  ) s
  where exists (select 1 from job_outputs x join jobs j using (job_id)
    where x.generation_id = d.current_generation_id and j.activation = 'source')
) e
where o.slug = $1 and d.dataset_id = any($2::text[]) order by d.dataset_id

-- name: left_out
-- Served datasets of a DAG that a version does not have.
select d.dataset_id from datasets d
where d.dag_id = $1 and d.current_generation_id is not null
  and not exists (select 1 from dag_version_datasets v where v.dag_version_id = $2 and v.dataset_uuid = d.dataset_uuid)
order by d.dataset_id

-- name: readers_elsewhere
-- Jobs of other DAGs that read these datasets; a query job reads them once, so only an unfinished one counts.
select d.dataset_id, g.name as dag, j.name as job, bool_or(coalesce(i.read->>'what', 'scope') = 'scope') as by_scope
from datasets d join orgs o using (org_id) join job_inputs i using (dataset_uuid) join jobs j using (job_id)
join dags g on g.dag_id = j.dag_id
where o.slug = $1 and d.dataset_id = any($2::text[]) and j.routed and j.dag_id <> d.dag_id
  and (j.operator <> all($3::text[]) or has_unfinished_tasks(j.job_id))
group by d.dataset_id, g.name, j.name order by d.dataset_id, dag, job
