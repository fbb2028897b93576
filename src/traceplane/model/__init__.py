"""The platform's concepts, as pure functions and frozen values: no database, no clock, no network.

advice          what to do about a task's error, and whether a retry can help
backfill        how a range of history is divided into scopes
backpressure    which producers are held, at what level, and because of which job
checks          what a dataset promises of its rows, and what an output was found to break
code_bundle     the Python modules that the jobs of one deploy run
column_types    types of declared columns, in Spark SQL and in Arrow
committed_file  a file of a commit, as the database stores it
compaction      which files of a dataset are merged
comparisons     which rows of an input a job reads: comparisons of columns with values
counted         a number with its noun
dag             what a DAG is: jobs, the datasets they read and write, and how their work is metered
dataset_schema  which schemas may follow each other in one generation of a dataset
durations       lengths of time as people write them
edges           what a task reads of an input, and which scopes a change of it makes stale
explain         why a task is waiting, in sentences
extents         which positions of an input have rows in which periods, by a column of time
file_places     the folders and S3 prefixes that file sources may list
finding         what an examination of the platform found
hidden_values   removes values that an operator was passed from the text that it wrote
hook_keys       which variables hold the signing keys of webhook sources, and whose they are
hot_table       hot datasets: the column types of their tables, and where the rows of a range are
invalid_values  what is wrong with a value, in words: the field and what it must be
job_definition  the definition of a deployed job, as stored
json_object     JSON whose keys users choose
json_text       values of a JSON text, exactly as written
message         what is sent over a channel, and how long its parts may be
near_names      the name that somebody probably meant
partitions      how a dataset is partitioned, and the names of its partitions
pipeline_rules  further conditions before a matching signal launches a pipeline
positions       which positions of a commit a reader gets
printable       text that is safe to print to a terminal
pruning         which files can contain rows with a value, judged by column statistics
requirements    the Python packages that a job needs, as people write them and as a lock
resources       what a worker has for its tasks, and what a job needs of it
row_positions   which rows have given positions: the values of the column that tells rows apart
runtimes        how a task reaches code: the runtime registry, as data
scope           the scope of a change: one position of an ordered stream, or a named range of positions
secret_texts    how a text refers to a secret, and how a value is written into a string of a query
silences        which alerts are silenced
spark_resources  what a job asks of Spark: executors and their size
stuck           what keeps tasks from making progress
task            the states of a task, and the rules that move it between them
task_payload    what the sandbox receives for a task
"""
