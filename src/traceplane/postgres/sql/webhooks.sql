-- Webhook sources: where deliveries go, which of them are new, and what was refused.

-- name: sources
-- Every source with a path that serves, of all organizations. `voice` as in registry.manual_target.
select o.slug as org, d.name as dag, coalesce(j.definition->>'generated_for', j.name) as job, j.job_id,
       j.definition->'config' as config, md5((j.definition->'config')::text) as config_hash, s.dataset_uuid, s.dataset_id, s.current_generation_id as generation_id,
       (select f.job_id from job_outputs f where f.generation_id = s.current_generation_id order by f.job_id limit 1) as voice,
       s.definition->'partitions' as partitions
from jobs j join dags d using (dag_id) join orgs o using (org_id)
join job_outputs x on x.job_id = j.job_id
join datasets s on s.dataset_uuid = x.dataset_uuid and s.current_generation_id = x.generation_id
where j.source_kind = 'webhook' and j.definition->'config' ? 'path' and j.routed and not j.building

-- name: lock_paths
-- Deploys of webhook sources of an organization take turns, so that two cannot take one path.
select pg_advisory_xact_lock(1953718640, hashtext($1::text))

-- name: paths_elsewhere
-- Which of these paths sources of other DAGs have, in versions that serve or are being built.
select v.in_place->'config'->>'path' as path, d.name as dag, coalesce(j.definition->>'generated_for', j.name) as job
from jobs j join dags d using (dag_id) join orgs o using (org_id)
join dag_version_jobs v on v.job_id = j.job_id join dag_versions w using (dag_version_id)
where j.source_kind = 'webhook' and j.definition->'config' ? 'path' and j.routed and w.state in ('active', 'building')
  and o.slug = $1 and d.name <> $2 and v.in_place->'config'->>'path' = any($3::text[])
order by 1, 2

-- name: add_keys
-- Adds keys that are new, of jobs that still have these configs, by which deliveries were checked, and write to these
-- generations, which their datasets still have. Another transaction that is adding the same key is waited for. In the order of the primary key, so that two transactions with
-- the same keys cannot deadlock.
with serving as materialized (
  select j.job_id, w.config_hash, s.dataset_uuid
  from unnest($1::uuid[], $2::uuid[], $3::text[]) as w (job_id, generation_id, config_hash)
  join jobs j using (job_id) join job_outputs x on x.job_id = j.job_id and x.generation_id = w.generation_id
  join datasets s on s.dataset_uuid = x.dataset_uuid and s.current_generation_id = w.generation_id
  where j.routed and not j.building and md5((j.definition->'config')::text) = w.config_hash
), added as (
  insert into webhook_keys (dataset_uuid, key, received_at)
  select s.dataset_uuid, n.key, tp_now()
  from unnest($4::uuid[], $5::text[], $6::text[]) as n (job_id, config_hash, key)
  join serving s using (job_id, config_hash)
  order by s.dataset_uuid, n.key collate "C"
  on conflict do nothing returning dataset_uuid, key
)
select (select array_agg(job_id) from serving) as jobs, (select array_agg(config_hash) from serving) as config_hashes,
       array_agg(dataset_uuid) as datasets, array_agg(key) as keys
from added

-- name: last_numbers
-- The number of the last delivery of each of these generations that has any; the caller has locked their tables.
select generation_id, position from generation_cursors where generation_id = any($1::uuid[])

-- name: forget_keys
-- Deletes keys that are older than anybody repeats a delivery, a limited number at once.
delete from webhook_keys where ctid = any(array(
  select ctid from webhook_keys where received_at < tp_now() - $1::interval limit $2))
returning 1

-- name: add_refusals
-- Counts what was refused.
insert into webhook_refusals as r (dataset_uuid, code, count, last_at)
select dataset_uuid, code, count, tp_now() from unnest($1::uuid[], $2::text[], $3::bigint[]) as n (dataset_uuid, code, count)
order by dataset_uuid, code
on conflict (dataset_uuid, code) do update set count = r.count + excluded.count, last_at = excluded.last_at

-- name: refusals
-- Of the datasets of an organization, the most frequent first.
select r.dataset_uuid, r.code, r.count, r.last_at
from webhook_refusals r join datasets s using (dataset_uuid) join orgs o using (org_id)
where o.slug = $1 order by r.count desc, r.code
