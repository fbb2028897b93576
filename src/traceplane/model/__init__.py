"""What the platform's words mean, as pure functions and frozen values: no database, no clock, no network.

advice          what to do about the error of a task, and whether starting the task again can help
backfill        which scopes a range of history is worked off in
backpressure    which producers are held, at what level, and because of whom
code_bundle     the Python modules that the jobs of one deploy run
column_types    types of declared columns: as Spark SQL spells them, and as Arrow does
cron            Cron schedules: five numeric fields, in UTC
dag             what a DAG is: jobs, the datasets they read and write, and how their work is metered
dataset_schema  which schemas may follow each other in one generation of a dataset
explain         why a task waits, in sentences
hidden_values   values that operators were handed, left out of what they wrote
hot_table       hot datasets: the types their tables have, and where the rows of a range are
market_hours    when a market is open
pipeline_rules  what else must hold before a signal launches a pipeline
positions       which positions of a commit a reader gets
printable       text that controls no terminal
pruning         which files can hold rows of a value, by what is known of their columns
runtimes        how a task reaches code: the runtime registry, as data
scope           the scope of a change: one position of an ordered stream, or a named range of positions
stuck           what keeps work from going on
task            the life of a task, as words
"""
