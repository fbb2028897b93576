-- What operators wrote.

-- name: keep
-- The output of attempts, the newest of each: heartbeats carry it while an attempt runs, its report in the end.
insert into task_logs (task_id, attempt, text, written_at)
select distinct on (task_id, attempt) task_id, attempt, text, tp_now() from unnest($1::uuid[], $2::int[], $3::text[]) as l (task_id, attempt, text)
on conflict (task_id, attempt) do update set text = excluded.text, written_at = excluded.written_at

-- name: of_task
-- The output of the attempts of one task of an organization, newest first.
select l.attempt, l.text, l.written_at
from task_logs l join tasks t using (task_id) join jobs j using (job_id) join dags d using (dag_id) join orgs o using (org_id)
where l.task_id = $1 and o.slug = $2 order by l.attempt desc limit $3
