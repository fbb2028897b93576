"""From a DAG file to the version that serves: parse, plan, deploy, cut over, delete, collect garbage.

apply             deploy: a DAG becomes rows, in one transaction
batching          jobs whose batches change and whose data stays
code_identity     the user's code that the jobs of a DAG run: one bundle, and a hash for each job
code_project      finds the user's modules on the code paths and follows their imports
consequences      what a deploy costs, and which other DAGs it affects
cutover           switches a DAG to another version, forwards or back, in one transaction
deletion          deletes a DAG, in one transaction
deploy_checks     why a deploy is refused, and what to do about it
fingerprint       a hash of what a job would produce
garbage           deletes what nobody can read any more, and history that has ended
job_checks        finds faults that would otherwise fail a job's first task
job_requirements  which Python packages the jobs of a DAG need, and the locks of them
job_rows          a job as rows: its definition, and its edges to the datasets it reads and writes
module_syntax     a module's imports, names and hash, without running it
operator_facts    what an operator's spec says about a job's tasks, stored with the job
package_locks     makes a lock of the packages that jobs need
plan              what a deploy would do: the difference between two DAGs
preparation       decides a deploy: reads and compares what is deployed, and writes nothing
spec              a DAG file becomes a `Dag`, or one error that names every problem in it
sql_identity      compares queries as parsed, so formatting and comments do not count
virtual_inputs    virtual datasets as inputs of jobs
"""
