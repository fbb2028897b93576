-- Whether a job asks for the network. What was deployed before did not say so; built-in operators need not.

alter table jobs add column network boolean not null default false;
alter table dag_version_jobs add column network boolean not null default false;
