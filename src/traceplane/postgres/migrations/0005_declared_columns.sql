-- What a generation's columns were declared as is asked for with every commit.
create index dag_version_datasets_by_generation on dag_version_datasets (generation_id);
