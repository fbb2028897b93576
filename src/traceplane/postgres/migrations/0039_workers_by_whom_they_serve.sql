-- A worker is known by whom it serves and the id it gives itself, so organizations can use the same ids.
alter table workers drop constraint workers_pkey;
alter table workers add constraint workers_by_whom_they_serve unique nulls not distinct (worker_id, serves);
