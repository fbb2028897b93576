"""A DAG file (YAML, version 1) becomes a `Dag`, or one `SpecInvalid` that names every problem in it.

    text ──compose──► nodes ──FIELDS──► records ──rules, links──► drafts ──► Dag

Nodes keep their line and column, so each problem points at what the user typed. Reading continues after a problem,
and checks that would only repeat it are skipped.

alerts            alerts: their fields, and the jobs that each becomes
checks            what the checks of datasets may say
dag_file          parses and loads a file; orders its jobs
datasets          what stored, hot and virtual datasets need
evaluation_query  the query of an alert's evaluation: made, and taken apart again
fields            the fields of a file: where each may stand, and what it may hold
files             file sources: their fields, and the job that stands for the listing
job_faults        faults found only after the file is read, located in its text
jobs              what each job reads and writes, and the rules between its fields
normalized        the deployed form of a DAG: plain JSON values
personal_data     personal data, and who may read and write datasets
scoping           how datasets are partitioned, and which scopes jobs have
sql_sizes         how much SQL a file may have
webhooks          webhook sources: their fields, and the job that receives deliveries
yaml_reader       YAML read by tables of fields; values keep their positions
"""
