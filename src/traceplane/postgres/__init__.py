"""All SQL of the platform: one module for each file in `sql/`, with functions that run its statements on sets of rows.

aggregator          the batches of aggregators: open, closed and due
alert_handovers     what is on its way to an alert, and what a version leaves to the next one
alert_views         alerts, as people look at them, acknowledge and silence them
alerts              alerts: what was found, whether it was sent, and what nobody wants to hear of for a while
audit               who changed what, and who was refused what
backpressure        the figures that the valve decides by, and its decisions
buffers             completed attempts whose rows wait for a sink, and dead letters
changes             prints of an organization's things, by which changes are noticed
channels            channels of organizations: how messages reach people and other services
check_failures      checks of datasets that failed without stopping anything
code_bundles        bundles of user code, by their hash
commits             outputs become part of their generation, in the transaction that ends the task
compaction          which files are small, the tasks that merge them, what their commits leave behind
coverage            which positions generations have
coverage_strip      what a dataset holds and what is under way in it, by stretches of positions
cron_schedules      cron sources: which are due, and how far each has come
database            the pool, transactions, and the named statements
dataset_history     commits of a dataset, summed over time
dataset_retention   partitions that are older than their dataset keeps them
deliveries          messages that wait for their channels, and what became of them
doctor              facts about pipelines that are not launched
effects             events as people look at them, and everything that one of them caused
embedded            the bundled Postgres: one server in a folder, reached over a Unix socket
events              events in, tasks out: the one statement that starts everything
executions          executions of pipelines; each pipeline runs once at a time
generation_schemas  merged schemas of generations
history             history that has ended, deleted page by page
graph               what is deployed as one graph, and what holds whom
hot_tables          the tables of hot generations: created at deploy, written with a commit, read by range
job_pauses          jobs that somebody paused
migrate             plain SQL files, applied in order, each in one transaction, once
openlineage         how far lineage has been told, and the runs that are open
outbox              side effects waiting to leave the database
partition_names     the names of partitions, each with its position
people              members of an organization, their roles and their tokens
personal_data       which columns are personal data, followed upstream
pinned              what a query reads, in one snapshot
platform_alerts     what the platform itself alerts on
pipelines           pipelines and lists of tickers
processes           processes that say they are there
registry            what is deployed, as rows
rights              which datasets have roles, and which jobs they concern
scopes              what a `scopes` job or an aggregator knows: told positions, and its scopes
secrets             secrets as they are stored: sealed, with who may use and set them
sign_in             identity providers, the people who sign in with them, and the sessions of their browsers
signal_minutes      what the pipelines of an organization make of signals, by minute, and how far the trigger is behind
source_files        file sources: which are due, the files that were there, and what has changed
table_statistics    fresh statistics for the planner
task_attempts       how attempts ended that did not complete
task_logs           the output of operators, stored in the transaction of the heartbeat or report that carried it
task_views          what people see of tasks: lists, counts, failures, lineage, why one waits
tasks               the lifecycle of a task
tokens              signing keys and opaque tokens, as stored
trigger             what the trigger stores in the database: offsets, pipelines, launches
versions            versions of DAGs, and replays of the past
wake_messages       the tables behind the local wake-up queue
webhooks            webhook sources: their deliveries, which of them are new, and what was refused
workers             workers that ask for tasks, and what jobs need of them
"""
