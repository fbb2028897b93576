-- Positions become batches. What has arrived is in told_positions, as sets, so that a repeated or late event can neither
-- complete a batch twice nor leave one open; batches that were closed are in known_scopes. Positions that were passed on
-- as they came are in passed_positions, and in no batch.

-- name: open_pieces
-- Of aligned ranges, the pieces that are in no batch and of which something has arrived: whether all of it has, and the
-- last position that has. $5: where the dataset starts; the range that has this position begins there.
select r.range_start as slot, lower(p) as first, upper(p) - 1 as last, h.held @> p as is_full,
       upper(h.held * int8multirange(p)) - 1 as arrived
from unnest($2::bigint[]) as r (range_start)
cross join lateral (
  select int8range(case when $5::bigint between r.range_start and r.range_start + $3::bigint - 1 then $5::bigint
                        else r.range_start end, r.range_start + $3::bigint) as whole) w
cross join lateral (
  select coalesce(range_agg(coverage_range(s.range_start, s.range_end)), '{}') as positions from known_scopes s
  where s.job_id = $1::uuid and s.range_start < upper(w.whole) and s.range_end >= lower(w.whole)
    and s.range_start >= greatest(lower(w.whole)::numeric - $4::bigint, -9223372036854775808)::bigint
) closed
cross join lateral (
  select coalesce(range_agg(t), '{}') as held from told_positions p, unnest(p.positions) t
  where p.job_id = $1::uuid and p.input_index = 0
    and (p.bucket between lower(w.whole) >> 16 and (upper(w.whole) - 1) >> 16 or p.bucket = -9223372036854775808)
    and t && w.whole
) h
cross join lateral (
  select coalesce(range_agg(t), '{}') as positions from passed_positions p, unnest(p.positions) t
  where p.job_id = $1::uuid
    and (p.bucket between lower(w.whole) >> 16 and (upper(w.whole) - 1) >> 16 or p.bucket = -9223372036854775808)
    and t && w.whole
) passed
cross join lateral unnest(int8multirange(w.whole) - closed.positions - passed.positions) p
where h.held && p order by 2

-- name: unbatched
-- Between the first and the last position that arrived, the pieces that are in no batch and of which something has
-- arrived; with what has arrived.
with told as materialized (
  select range_agg(t) as held from told_positions p, unnest(p.positions) t where p.job_id = $1::uuid and p.input_index = 0
), closed as materialized (
  select coalesce(range_agg(coverage_range(range_start, range_end)), '{}') as positions from known_scopes
  where job_id = $1::uuid
), passed as materialized (
  select coalesce(range_agg(t), '{}') as positions from passed_positions p, unnest(p.positions) t where p.job_id = $1::uuid
)
select lower(p) as first, coalesce(upper(p) - 1, 9223372036854775807) as last,
  (select jsonb_agg(jsonb_build_array(lower(a), coalesce(upper(a) - 1, 9223372036854775807)) order by a)
   from unnest(told.held * int8multirange(p)) a) as arrived
from told, closed, passed, unnest(int8multirange(range_merge(told.held)) - closed.positions - passed.positions) p
where told.held && p order by 1

-- name: close
-- Records batches: what each covers, why it was closed, and which of its positions had arrived.
insert into known_scopes (job_id, scope_key, partition_key, range_start, range_end, emitted, closed_by, closed_at, held)
select $1::uuid, 'p:' || n.partition_key, n.partition_key, n.first, n.last, true, n.closed_by, tp_now(),
  (select coalesce(range_agg(t * coverage_range(n.first, n.last)), '{}') from told_positions p, unnest(p.positions) t
   where p.job_id = $1::uuid and p.input_index = 0 and t && coverage_range(n.first, n.last)
     and (p.bucket between n.first >> 16 and n.last >> 16 or p.bucket = -9223372036854775808))
from unnest($2::text[], $3::bigint[], $4::bigint[], $5::text[]) as n (partition_key, first, last, closed_by)
on conflict (job_id, scope_key) do nothing

-- name: note_changes
-- Batches that are emitted again: which of their positions have arrived by now.
update known_scopes s set held = (
  select coalesce(range_agg(t * coverage_range(s.range_start, s.range_end)), '{}') from told_positions p, unnest(p.positions) t
  where p.job_id = $1::uuid and p.input_index = 0 and t && coverage_range(s.range_start, s.range_end)
    and (p.bucket between s.range_start >> 16 and s.range_end >> 16 or p.bucket = -9223372036854775808))
where s.job_id = $1::uuid and s.scope_key = any($2::text[])

-- name: open
-- Batches that fill from now on, unless they did before; null: they close when the batch before is done.
insert into open_batches (job_id, slot, opened_at, due_at, backfill)
select $1::uuid, n.slot, tp_now(), tp_now() + $3::interval, n.backfill
from unnest($2::bigint[], $4::boolean[]) as n (slot, backfill) order by n.slot
on conflict (job_id, slot) do update set backfill = open_batches.backfill and excluded.backfill
where open_batches.backfill and not excluded.backfill

-- name: forget_open
-- Batches that fill no more.
delete from open_batches where job_id = $1::uuid and slot = any($2::bigint[])

-- name: due
-- Aggregators with batches to close, locked as their passes lock them.
select j.job_id from jobs j
where j.routed and exists (select 1 from open_batches o where o.job_id = j.job_id and batch_is_due(o))
  and not exists (select 1 from job_holds h where h.job_id = j.job_id and h.level = 2)
  and not exists (select 1 from job_pauses p where p.dag_id = j.dag_id and p.job = j.name)
order by j.job_id for no key update of j skip locked

-- name: due_slots
-- The batches of a locked aggregator that are to be closed, and whether only backfills filled them.
select slot, backfill from open_batches o where o.job_id = $1::uuid and batch_is_due(o) order by slot

-- name: any_open
-- Whether any batch waits for something else than its last position.
select exists (select 1 from open_batches)

-- name: of_job
-- The aggregators of a job, or the aggregator of this name; those that are being built too.
select j.job_id, j.name, (j.definition->'config'->>'size')::bigint as size, ds.dataset_id,
       ds.definition->'partitions' as partitions
from jobs j join dags d using (dag_id) join orgs o using (org_id)
join job_inputs i on i.job_id = j.job_id and i.input_index = 0 join datasets ds using (dataset_uuid)
where o.slug = $1 and d.name = $2 and j.routed and j.runtime = 'dispatcher' and j.operator = any($4::text[])
  and (j.name = $3 or j.definition->>'generated_for' = $3) and j.definition->'config'->>'each' is null
order by j.job_id for no key update of j

-- name: close_by_hand
-- All that has arrived at an aggregator and is in no batch is closed in the next pass.
insert into open_batches (job_id, slot, opened_at, due_at, backfill)
values ($1::uuid, -9223372036854775808, tp_now(), tp_now(), false)
on conflict (job_id, slot) do nothing

-- name: batch_of_task
-- The batch that a task is about.
select ds.dataset_id, ds.definition->'partitions' as partitions, s.partition_key, s.closed_by, s.closed_at,
  coalesce((select jsonb_agg(jsonb_build_array(lower(a), coalesce(upper(a) - 1, 9223372036854775807)) order by a)
   from unnest(s.held) a), '[]') as held
from task_inputs i join events e using (event_id) join known_scopes s on s.job_id = e.producer_id and s.scope_key = e.scope_key
join job_inputs u on u.job_id = s.job_id and u.input_index = 0 join datasets ds on ds.dataset_uuid = u.dataset_uuid
join orgs o using (org_id)
where i.task_id = $1 and o.slug = $2 and s.closed_by is not null limit 1

-- name: closing_times
-- When batches that are filling are closed; null: once the batch before is done.
select slot, due_at from open_batches where job_id = $1::uuid and slot = any($2::bigint[])

-- name: passed
-- Of ranges, the parts that were passed on as they came.
select n.ord::int as ord, lower(r) as first, coalesce(upper(r) - 1, 9223372036854775807) as last
from unnest($2::bigint[], $3::bigint[]) with ordinality as n (first, last, ord)
cross join lateral (
  select range_agg(t * coverage_range(n.first, n.last)) as positions from passed_positions p, unnest(p.positions) t
  where p.job_id = $1::uuid and t && coverage_range(n.first, n.last)
    and (p.bucket between n.first >> 16 and n.last >> 16 or p.bucket = -9223372036854775808)
) p cross join lateral unnest(p.positions) r
order by 1, 2

-- name: add_passed
-- Positions that are passed on as they come.
insert into passed_positions as p (job_id, bucket, positions)
select $1::uuid, coverage_bucket(n.first, n.last), range_agg(coverage_range(n.first, n.last))
from unnest($2::bigint[], $3::bigint[]) as n (first, last)
group by 2 order by 2
on conflict (job_id, bucket) do update set positions = p.positions + excluded.positions
where not p.positions @> excluded.positions

-- name: any_passed
-- Whether an aggregator has passed on anything as it came.
select exists (select 1 from passed_positions where job_id = $1::uuid)

-- name: unready
-- Whether a job has not yet received all of the past, or has to catch up.
select exists (select 1 from replays where job_id = $1::uuid) or exists (select 1 from catch_ups where job_id = $1::uuid)

-- name: put_in_front
-- An aggregator ($1) batches what a job ($2) reads from now on; what the job has computed, or has a task for, stays as it
-- came. The stream is stopped, so that the job has received every event.
with has as materialized (  -- a position that one of its datasets lacks is not computed
  select range_intersect_agg(coverage_of(o.generation_id) + dropped_of(o.dataset_uuid)) as positions
  from job_outputs o where o.job_id = $2::uuid
), given as materialized (
  select range_agg(coverage_range(t.range_start, t.range_end)) as positions
  from tasks t where t.job_id = $2::uuid and (t.stage = 0 or t.stage = 1 or t.stage = 3) and t.range_start is not null
), passed as (
  insert into passed_positions (job_id, bucket, positions)
  select $1::uuid, coverage_bucket(lower(r), coalesce(upper(r) - 1, 9223372036854775807)), range_agg(r)
  from has cross join given cross join lateral unnest(coalesce(has.positions, '{}') + coalesce(given.positions, '{}')) r
  group by 2
), batches as materialized (
  select o.dataset_uuid, o.generation_id, i.generation_id as batched
  from job_outputs o join job_inputs i on i.job_id = $1::uuid and i.input_index = 0 where o.job_id = $1::uuid
), since as (
  insert into aggregators_added (job_id, generation_id, event_id)
  select $1::uuid, batched, nextval('events_event_id_seq') from batches
), reads as (
  update job_inputs i set dataset_uuid = b.dataset_uuid, generation_id = b.generation_id
  from batches b where i.job_id = $2::uuid and i.generation_id = b.batched
)
update jobs set revision = revision + 1 where job_id = $2::uuid

-- name: keep_in_front
-- The aggregators of jobs that a version keeps stay in front of them in each version that has these jobs, since they know
-- how the data was cut. Where a version has no batches, they pass each event on as it comes. $1: a version that has them.
with fronts as materialized (
  select v.job_id, i.job_id as behind
  from dag_version_jobs v join jobs a using (job_id) join job_outputs o using (job_id)
  join job_inputs i on i.generation_id = o.generation_id join jobs b on b.job_id = i.job_id
  where v.dag_version_id = $1 and a.runtime = 'dispatcher' and a.operator = any($2::text[])
    and b.dag_id = a.dag_id and a.definition->>'generated_for' = b.name and i.role = 'feeds'
), missing as materialized (
  select distinct m.dag_version_id, f.job_id from fronts f join dag_version_jobs m on m.job_id = f.behind
  where not exists (select 1 from dag_version_jobs x where x.dag_version_id = m.dag_version_id and x.job_id = f.job_id)
), datasets as (
  insert into dag_version_datasets (dag_version_id, dataset_uuid, generation_id, definition)
  select m.dag_version_id, d.dataset_uuid, d.generation_id, d.definition
  from missing m join job_outputs o using (job_id)
  join dag_version_datasets d on d.dag_version_id = $1 and d.generation_id = o.generation_id
  on conflict do nothing
)
insert into dag_version_jobs (dag_version_id, job_id, priority, max_concurrency, dispatch_window, max_queue_depth,
                              max_queue_age, timeout, lease, max_attempts, retry_base, retry_max, network,
                              backfill_concurrency, function, requires, secrets, source, in_place)
select m.dag_version_id, v.job_id, v.priority, v.max_concurrency, v.dispatch_window, v.max_queue_depth,
  v.max_queue_age, v.timeout, v.lease, v.max_attempts, v.retry_base, v.retry_max, v.network,
  v.backfill_concurrency, v.function, v.requires, v.secrets, v.source,
  v.in_place || jsonb_build_object('config', jsonb_build_object(
    'source_dataset', v.in_place->'config'->'source_dataset', 'each', true))
from missing m join dag_version_jobs v on v.dag_version_id = $1 and v.job_id = m.job_id

-- name: configured_anew
-- Aggregators that a version configures otherwise than they are, locked: what their passes have brought is visible, and
-- none begins. Only another time does not change what has begun to fill.
select j.job_id from dag_version_jobs v join jobs j using (job_id)
where v.dag_version_id = $1 and j.runtime = 'dispatcher' and j.operator = any($2::text[])
  and ((j.definition->'config') - '{every_seconds,max_wait_seconds}'::text[],
       j.definition->'config' ? 'max_wait_seconds')
    is distinct from ((v.in_place->'config') - '{every_seconds,max_wait_seconds}'::text[],
       v.in_place->'config' ? 'max_wait_seconds')
order by j.job_id for no key update of j

-- name: cut_anew
-- What fills in these aggregators is cut by another rule in their next pass.
with filling as materialized (
  select job_id from unnest($1::uuid[]) as a (job_id)
  where exists (select 1 from told_positions t where t.job_id = a.job_id)
), gone as (
  delete from open_batches o using filling f where o.job_id = f.job_id and o.slot > -9223372036854775807
)
insert into open_batches (job_id, slot, opened_at, due_at, backfill)
select job_id, -9223372036854775807, tp_now(), tp_now(), false from filling
on conflict (job_id, slot) do nothing
