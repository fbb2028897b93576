-- The code that jobs run.

-- name: add
-- Stores a bundle, unless it is stored already.
insert into code_bundles (bundle_hash, content) values ($1, $2) on conflict (bundle_hash) do nothing

-- name: load
-- The text of a bundle.
select content from code_bundles where bundle_hash = $1
