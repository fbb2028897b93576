-- The code that jobs run.

-- name: add
-- Stores a bundle. One that is stored already is renewed, so that it is not deleted as unused before its jobs are seen.
insert into code_bundles (bundle_hash, content) values ($1, $2)
on conflict (bundle_hash) do update set created_at = tp_now()

-- name: load
-- The text of a bundle.
select content from code_bundles where bundle_hash = $1
