-- Cron sources: which are due, and how far each has come.

-- name: lock
-- The schedules of a DAG, locked: no tick of theirs fires until the transaction ends.
select job_id from cron_schedules where dag_id = $1 order by job_id for update

-- name: follow
-- The schedules of a version that begins to serve, and no others of its DAG. A source that changes, or takes over the
-- dataset of another one, continues where that one is; a new one, or one with another schedule, has the ticks after this
-- moment.
with serving as materialized (
  select v.job_id, v.source from dag_version_jobs v where v.dag_version_id = $2 and v.source is not null
), before as materialized (
  select job_id, last_tick, source,
         -- It had no tick between settled_through and next_tick, and none of another schedule counts there. Until a
         -- dispatcher has looked at it, next_tick is not known.
         case when due_at is null then tp_now() when next_tick is null then settled_through
              else greatest(settled_through, least(next_tick - interval '1 second', tp_now())) end as settled,
         -- Its ticks may have been missed, while it was paused or no dispatcher ran; none became due a moment ago.
         due_at is null or next_tick is null or due_at < tp_now() - interval '1 minute' as late
  from cron_schedules where dag_id = $1
), gone as (
  delete from cron_schedules where dag_id = $1 and job_id not in (select job_id from serving)
)
insert into cron_schedules as s (job_id, dag_id, source, settled_through, last_tick, due_at)
select v.job_id, $1, v.source,
  case when b.late and (b.source->>'schedule', b.source->>'time_zone') is distinct from (v.source->>'schedule', v.source->>'time_zone')
       then tp_now() else coalesce(b.settled, tp_now()) end,
  b.last_tick, tp_now()
from serving v left join lateral (
  select b.* from before b
  where b.job_id = v.job_id or exists (
    select 1 from job_outputs o join job_outputs x using (generation_id) where o.job_id = b.job_id and x.job_id = v.job_id)
  order by b.job_id = v.job_id desc limit 1
) b on true
on conflict (job_id) do update set source = excluded.source, settled_through = excluded.settled_through,
  next_tick = null, due_at = excluded.due_at
where s.source is distinct from excluded.source

-- name: forget
-- A deleted DAG has no more ticks.
delete from cron_schedules where dag_id = $1

-- name: take
-- Sources that are due, locked so that only one dispatcher settles their ticks, and the datasets they emit events of.
-- `voice` is the first source of a generation: later ones emit in its name, so that duplicates are recognized.
select s.job_id, s.source, s.settled_through, tp_now() as now, o.slug as org, g.name as dag, j.name as job,
  (select jsonb_agg(jsonb_build_object('dataset_id', d.dataset_id, 'generation_id', x.generation_id,
      'partitions', coalesce(d.definition->'partitions', '{}'), 'voice',
      (select f.job_id from job_outputs f where f.generation_id = x.generation_id order by f.job_id limit 1))
      order by x.output_index)
   from job_outputs x join datasets d using (dataset_uuid) where x.job_id = s.job_id) as outputs
from cron_schedules s join jobs j using (job_id) join dags g on g.dag_id = s.dag_id join orgs o using (org_id)
where s.due_at <= tp_now()
  and not exists (select 1 from job_pauses p where p.dag_id = s.dag_id and p.job = j.name)
order by s.due_at limit $1 for update of s skip locked

-- name: settle
-- How far sources have come, and when to look at them again.
update cron_schedules s set settled_through = d.settled_through, next_tick = d.next_tick, due_at = d.due_at,
  last_tick = coalesce(d.last_tick, s.last_tick)
from unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[])
  as d (job_id, settled_through, next_tick, due_at, last_tick)
where s.job_id = d.job_id

-- name: of_org
-- The cron sources of an organization that serve; or only those of a dataset. One with an operator has two jobs, of which
-- people know the other.
select g.name as dag, coalesce(j.definition->>'generated_for', j.name) as job, s.source, s.last_tick, p.paused,
  case when not p.paused then s.next_tick end as next_tick
from cron_schedules s join jobs j using (job_id) join dags g on g.dag_id = s.dag_id join orgs o using (org_id)
cross join lateral (
  select exists (select 1 from job_pauses p where p.dag_id = s.dag_id and p.job = j.name) as paused) p
where o.slug = $1 and ($2::text is null or exists (
  select 1 from jobs w join job_outputs x using (job_id) join datasets d using (dataset_uuid)
  where w.dag_id = s.dag_id and w.routed and not w.building and d.dataset_id = $2
    and w.name in (j.name, j.definition->>'generated_for')))
order by dag, job

-- name: clock
-- The database's clock.
select tp_now()
