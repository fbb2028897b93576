-- Which files of a commit a reader needs. Of a dataset of a million files, few can hold what is asked for, and only those
-- leave the database.

-- The files that have rows and can hold what is asked, without their statistics. `asked` is what `model.pruning.asked` makes:
-- every column must have a value within one of its spans. A bound counts only if it is written as its column's kind is; a
-- file of which nothing is known stays. Text and times compare by code point, whatever the collation of the database.
create function asked_files(files jsonb, asked jsonb) returns jsonb language sql immutable parallel safe as $$
  select coalesce(jsonb_agg(f.file - 'statistics' order by f.n), '[]')
  from jsonb_array_elements(files) with ordinality f (file, n)
  where f.file->'rows' <> '0' and not exists (
    select 1
    from jsonb_to_recordset(asked) as q ("column" text, type text, pattern text, spans jsonb)
    cross join lateral (select f.file->'statistics'->q.column as known offset 0) s
    cross join lateral (
      select case when jsonb_typeof(known->'min') = type then known->'min' end as min,
             case when jsonb_typeof(known->'max') = type then known->'max' end as max,
             case when type = 'string' then substring(known->>'min' from pattern) end collate "C" as min_text,
             case when type = 'string' then substring(known->>'max' from pattern) end collate "C" as max_text offset 0
    ) b
    where jsonb_typeof(known) = 'object' and (known->'null_count' = f.file->'rows' or not exists (
      select 1 from jsonb_to_recordset(spans) as p (low jsonb, high jsonb, before boolean, upwards boolean)
      where case when type = 'string' then
          coalesce(min_text < high#>>'{}' or not before and min_text = high#>>'{}', true)
          and coalesce(max_text >= low#>>'{}', true)
        else
          coalesce(min < high or not before and min = high, true) and (upwards or coalesce(max >= low, true))
        end)))
$$;
