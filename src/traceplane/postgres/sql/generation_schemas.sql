-- The merged schema of each generation's files.

-- name: load
-- The merged schemas of generations, with the names of their datasets; no columns where nothing is known yet. Whether
-- commits of different widths may overlap there: `widest` is 0 while all are of one position. What the DAG file
-- declares is the same in all versions that share a generation: another declaration makes another generation.
select g.generation_id, d.dataset_id, s.columns, s.revision, g.position_column, coalesce(k.widest, 0) as widest,
       (select v.definition -> 'columns' from dag_version_datasets v where v.generation_id = g.generation_id limit 1)
       as declared,
       (select v.definition -> 'partitions' from dag_version_datasets v where v.generation_id = g.generation_id limit 1)
       as partitions,
       exists (select 1 from dropped_positions p where p.dataset_uuid = g.dataset_uuid) as drops
from generations g join datasets d using (dataset_uuid) left join generation_schemas s using (generation_id)
left join generation_cursors k using (generation_id)
where g.generation_id = any($1::uuid[])

-- name: save
-- Replaces schemas by merged ones; a schema that changed meanwhile is not touched.
insert into generation_schemas (generation_id, columns, revision, updated_at)
select generation_id, columns::jsonb, revision, tp_now()
from unnest($1::uuid[], $2::text[], $3::int[]) as s (generation_id, columns, revision)
order by generation_id
on conflict (generation_id) do update
set columns = excluded.columns, revision = excluded.revision, updated_at = excluded.updated_at
where generation_schemas.revision = excluded.revision - 1
returning generation_id
