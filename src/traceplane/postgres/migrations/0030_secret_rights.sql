-- Secrets may be elsewhere than in Postgres; who may use and set them is here in any case.

-- Roles whose members may set and list the secret, besides admins.
alter table secrets add column roles text[] not null default '{}';

-- 0: Postgres does not hold its value.
alter table secrets alter column newest set default 0;
