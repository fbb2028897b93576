-- Positions become batches. What has arrived is in told_positions, as sets, so that a repeated or late event can neither
-- complete a batch twice nor leave one open; batches that were closed are in known_scopes.

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
cross join lateral unnest(int8multirange(w.whole) - closed.positions) p
where h.held && p order by 2

-- name: unbatched
-- Between the first and the last position that arrived, the pieces that are in no batch and of which something has
-- arrived; with what has arrived.
with told as materialized (
  select range_agg(t) as held from told_positions p, unnest(p.positions) t where p.job_id = $1::uuid and p.input_index = 0
), closed as materialized (
  select coalesce(range_agg(coverage_range(range_start, range_end)), '{}') as positions from known_scopes
  where job_id = $1::uuid
)
select lower(p) as first, coalesce(upper(p) - 1, 9223372036854775807) as last,
  (select jsonb_agg(jsonb_build_array(lower(a), coalesce(upper(a) - 1, 9223372036854775807)) order by a)
   from unnest(told.held * int8multirange(p)) a) as arrived
from told, closed, unnest(int8multirange(range_merge(told.held)) - closed.positions) p
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
  and (j.name = $3 or j.definition->>'generated_for' = $3)
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
where i.task_id = $1 and o.slug = $2 and s.closed_by is not null and s.closed_by <> 'before' limit 1

-- name: closing_times
-- When batches that are filling are closed; null: once the batch before is done.
select slot, due_at from open_batches where job_id = $1::uuid and slot = any($2::bigint[])
