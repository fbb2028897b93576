-- Workers of organizations: a worker is woken for tasks of those that its token serves, and claims no others.

-- The organizations whose tasks the workers with this token get; null: all.
alter table access_tokens add column serves text[] check (serves is null or (principal = 'worker' and serves <> '{}'));

-- Tasks of each organization have wake queues of their own. The first organization has those of the runtimes
-- themselves. Names of queues are short: SQS allows 80 characters.
alter table orgs add column queue_suffix text not null generated always as (
  case when slug = 'default' then ''
       when length(slug) <= 24 then '_' || slug
       else '_' || left(slug, 11) || '-' || left(md5(slug), 12) end) stored;
alter table jobs drop column queue_suffix;
alter table jobs add column org_queue text not null default '';
update jobs j set org_queue = o.queue_suffix from dags d join orgs o using (org_id)
where d.dag_id = j.dag_id and o.queue_suffix <> '';
alter table jobs add column queue_suffix text not null
  generated always as (coalesce('-' || left(md5(requires::text), 12), '') || org_queue) stored;

-- Whom a worker serves; null: all. An organization sees only workers that serve it.
alter table workers add column serves text[];
alter table workers enable row level security;
create policy of_the_organization on workers for select to traceplane_org
  using (serves is null or (select slug from orgs) = any(serves));

-- Where the files of a generation are in the object store, below a folder of its organization. Null: it is older than
-- these folders, and its files are below {dataset}/{generation}/.
alter table generations add column storage text;
create function storage_of(generation generations) returns text language sql immutable parallel safe as $$
  select coalesce(generation.storage, generation.dataset_uuid || '/' || generation.generation_id || '/')
$$;

-- A deploy renews the code that is stored already, so that it is not deleted as unused.
grant update (created_at) on code_bundles to traceplane_org;
