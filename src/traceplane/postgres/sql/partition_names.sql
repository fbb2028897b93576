-- Partitions that have names.

-- name: find
-- The positions of names of an organization's partitions.
select n.name, n.position from partition_names n join orgs o using (org_id)
where o.slug = $1 and n.name = any($2::text[])

-- name: at
-- The names at positions of an organization's partitions.
select n.name, n.position from partition_names n join orgs o using (org_id)
where o.slug = $1 and n.position = any($2::bigint[])

-- name: lock
-- Registrations of names of one organization take turns.
select pg_advisory_xact_lock(1635151215, hashtext($1::text))

-- name: register
-- Gives the next positions of an organization to new names.
insert into partition_names (org_id, name, position)
select o.org_id, n.name, coalesce((select max(p.position) from partition_names p where p.org_id = o.org_id), -1)
  + row_number() over (order by n.ord)
from orgs o, (select name, min(ord) as ord from unnest($2::text[]) with ordinality as w (name, ord) group by name) n
where o.slug = $1 and not exists (select 1 from partition_names p where p.org_id = o.org_id and p.name = n.name)
