-- The code that jobs run, and the locks of the packages that it needs.

-- name: add
-- Stores a bundle. One that is stored already is renewed, so that it is not deleted as unused before its jobs are seen.
insert into code_bundles (bundle_hash, content) values ($1, $2)
on conflict (bundle_hash) do update set created_at = tp_now()

-- name: load
-- The text of a bundle or lock that a job of these organizations ($2; null: any) runs with.
select content from code_bundles where bundle_hash = $1
  and ($2::text[] is null or exists (
    select 1 from jobs j join dags d using (dag_id) join orgs o using (org_id)
    where $1 in (j.definition->>'code_bundle', j.definition->>'environment') and o.slug = any($2)))
