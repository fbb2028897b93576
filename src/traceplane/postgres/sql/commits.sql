-- What tasks produced.

-- name: record
-- Outputs become part of their generation; a cursor never moves backwards.
with produced as materialized (
  select * from unnest($1::uuid[], $2::int[], $3::uuid[], $4::text[], $5::bigint[], $6::bigint[], $7::text[],
                       $8::bigint[], $9::bigint[], $10::text[])
    as p (task_id, output_index, generation_id, partition_key, range_start, range_end, files, row_count, bytes, schema_hash)
), kept as (
  insert into dataset_commits (task_id, output_index, generation_id, partition_key, range_start, range_end, files,
                               row_count, bytes, schema_hash, committed_at)
  select task_id, output_index, generation_id, partition_key, range_start, range_end, files::jsonb, row_count, bytes,
         schema_hash, tp_now()
  from produced
  on conflict (task_id, output_index, scope_key) do nothing
)
insert into generation_cursors (generation_id, position, widest, updated_at)
select generation_id, max(range_end), least(max(range_end::numeric - range_start), 9223372036854775807)::bigint, tp_now()
from produced group by generation_id order by generation_id
on conflict (generation_id) do update
set position = greatest(generation_cursors.position, excluded.position),
    widest = greatest(generation_cursors.widest, excluded.widest), updated_at = excluded.updated_at

-- name: for_tasks
-- The committed files that each task's inputs bring for the task's own scope.
select t.task_id, i.input_index, c.files
from unnest($1::uuid[]) as w (task_id)
join tasks t using (task_id) join job_inputs i using (job_id) join generations g using (generation_id)
join generation_cursors k on k.generation_id = coalesce(g.data_generation_id, g.generation_id)
cross join lateral (
  select c.commit_id, c.files from dataset_commits c
  where c.generation_id = k.generation_id
    and c.range_start >= greatest(t.range_start::numeric - k.widest, -9223372036854775808)::bigint
    and c.range_start <= t.range_end and c.range_end >= t.range_start
  offset 0  -- a probe by index for each task
) c
order by t.task_id, i.input_index, c.commit_id

-- name: summary
-- Rows and bytes committed per dataset.
select d.dataset_id, count(c.commit_id) as commits, coalesce(sum(c.row_count), 0)::bigint as rows,
       coalesce(sum(c.bytes), 0)::bigint as bytes, gc.position as cursor
from datasets d
left join dataset_commits c on c.generation_id = d.current_generation_id
left join generation_cursors gc on gc.generation_id = d.current_generation_id
group by d.dataset_id, gc.position order by d.dataset_id
