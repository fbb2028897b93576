-- How much of each generation readers see is kept, since many look at it and counting a million commits takes long.
-- It changes with the commits, in their transactions. Writers of a generation take turns by its cursor already.
create table generation_totals (
  generation_id uuid primary key,
  commits bigint not null,
  row_count numeric not null,
  bytes numeric not null,
  -- Commits that newer ones have partly replaced.
  partly_hidden bigint not null
) with (fillfactor = 50);
call belongs_to_org('{generation_totals}',
  'exists (select 1 from generations p where p.generation_id = THIS.generation_id)');

lock table dataset_commits in share row exclusive mode;
insert into generation_totals
select generation_id, count(*), sum(row_count), sum(bytes), count(hidden)
from dataset_commits where superseded_by is null group by generation_id;

create function keep_generation_totals() returns trigger language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    insert into generation_totals as t
    select generation_id, count(*), sum(row_count), sum(bytes), count(hidden)
    from added where superseded_by is null group by generation_id order by generation_id
    on conflict (generation_id) do update set commits = t.commits + excluded.commits,
      row_count = t.row_count + excluded.row_count, bytes = t.bytes + excluded.bytes,
      partly_hidden = t.partly_hidden + excluded.partly_hidden;
  elsif tg_op = 'UPDATE' then
    insert into generation_totals as t
    select generation_id, sum(sign), sum(sign * row_count), sum(sign * bytes), sum(sign * (hidden is not null)::int)
    from (select 1 as sign, generation_id, row_count, bytes, hidden from added where superseded_by is null
          union all
          select -1, generation_id, row_count, bytes, hidden from gone where superseded_by is null) c
    group by generation_id
    having sum(sign) <> 0 or sum(sign * row_count) <> 0 or sum(sign * bytes) <> 0
      or sum(sign * (hidden is not null)::int) <> 0
    order by generation_id
    on conflict (generation_id) do update set commits = t.commits + excluded.commits,
      row_count = t.row_count + excluded.row_count, bytes = t.bytes + excluded.bytes,
      partly_hidden = t.partly_hidden + excluded.partly_hidden;
  else
    update generation_totals t set commits = t.commits - g.commits, row_count = t.row_count - g.row_count,
      bytes = t.bytes - g.bytes, partly_hidden = t.partly_hidden - g.partly_hidden
    from (select generation_id, count(*) as commits, sum(row_count) as row_count, sum(bytes) as bytes,
                 count(hidden) as partly_hidden
          from gone where superseded_by is null group by generation_id) g
    where t.generation_id = g.generation_id;
  end if;
  return null;
end $$;
create trigger commits_added after insert on dataset_commits
  referencing new table as added for each statement execute function keep_generation_totals();
create trigger commits_changed after update on dataset_commits
  referencing new table as added old table as gone for each statement execute function keep_generation_totals();
create trigger commits_deleted after delete on dataset_commits
  referencing old table as gone for each statement execute function keep_generation_totals();
