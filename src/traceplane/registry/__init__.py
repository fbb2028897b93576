"""From a DAG file to what serves: parse, plan, deploy, cut over, delete, collect.

apply           deploy: a DAG becomes rows, in one transaction
code_identity   which of the user's modules a job runs, and what they say, as a hash
compaction      whether a `compact` job can work: asked at deploy, since what it deletes is gone
cutover         making another version of a DAG the one that serves, forwards or back, in one transaction
deletion        deleting a DAG, in one transaction
fingerprint     what a job would produce, as a hash
garbage         files that nobody can read any more; run by command
job_checks      what would only have failed in a job's first task
plan            what a deploy would do, as a pure difference of two DAGs
spec            a DAG file becomes a `Dag`, or one error that names every problem in it
sql_identity    queries compared as parsed: formatting and comments make no other query
virtual_inputs  virtual datasets as inputs of jobs
"""
