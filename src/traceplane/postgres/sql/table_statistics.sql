-- Keeps the planner's statistics of the hot tables fresh.

-- name: stale
-- Tables that changed a lot since they were last analyzed.
select relname from pg_stat_user_tables
where schemaname = 'traceplane' and n_mod_since_analyze > 300 + n_live_tup / 2

-- name: turn
-- One dispatcher at a time is enough.
select pg_try_advisory_xact_lock(7203117)
