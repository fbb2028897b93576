-- Datasets whose partitions become other periods: positions of the two are never compared.

-- Whether a position stands for the same data in both, as in model.edges.
create function same_periods(one jsonb, other jsonb) returns boolean language sql immutable parallel safe as $$
  select coalesce(one->>'by', 'position') = coalesce(other->>'by', 'position')
    and (coalesce(one->>'time_zone', 'UTC') = coalesce(other->>'time_zone', 'UTC') or one->>'by' = 'hour')
$$;

-- What all outputs of a job have dropped: a rebuild does not compute it again, unless its partitions are other periods.
-- Null: the job has no outputs.
create or replace function dropped_by_job(job uuid) returns int8multirange language sql stable parallel safe as $$
  select range_intersect_agg(case when same_periods(d.definition->'partitions', v.partitions)
                                  then dropped_of(o.dataset_uuid) else '{}' end)
  from job_outputs o join datasets d using (dataset_uuid)
  cross join lateral (select w.definition->'partitions' as partitions from dag_version_datasets w
                      where w.generation_id = o.generation_id limit 1) v
  where o.job_id = job
$$;
