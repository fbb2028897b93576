"""From a DAG file to what serves: parse, plan, deploy, cut over, delete, collect.

apply           deploy: a DAG becomes rows, in one transaction
code_identity   what the jobs of a DAG run of the user's code, as a bundle and a hash for each
code_project    the user's modules on their code paths, imports followed
consequences    what a deploy costs, and which other DAGs it concerns
cutover         making another version of a DAG the one that serves, forwards or back, in one transaction
deletion        deleting a DAG, in one transaction
deploy_checks   what a deploy refuses, each with what to do about it
fingerprint     what a job would produce, as a hash
garbage         files that nobody can read any more; run by command
job_checks      what would only have failed in a job's first task
job_rows        a job as rows: its definition, and its edges to what it reads and writes
module_syntax   a module's imports, names and hash, without running it
operator_facts  what an operator's spec says of the tasks of a job, kept with the job
plan            what a deploy would do, as a pure difference of two DAGs
preparation     the decision of a deploy: what is deployed is read and compared, and nothing is written
spec            a DAG file becomes a `Dag`, or one error that names every problem in it
sql_identity    queries compared as parsed: formatting and comments make no other query
virtual_inputs  virtual datasets as inputs of jobs
"""
