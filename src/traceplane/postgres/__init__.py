"""All SQL of the platform: one module for each file of statements in `sql/`, and functions that run them in sets.

aggregator          positions an aggregator has seen
backpressure        figures the valve decides by, and what it decided
code_bundles        bundles of user code, by their hash
commits             outputs become part of their generation, in the transaction that ends the task
coverage            which positions generations hold
database            the pool, transactions, and the named statements
doctor              facts about pipelines that are not launched
embedded            the Postgres that comes with the package: one server in a folder, reached over a Unix socket
events              events in, tasks out: the one statement by which anything starts
executions          executions of pipelines, of which one runs at a time
generation_schemas  merged schemas of generations
hot_tables          the tables of hot generations: made at deploy, written with a commit, read by range
migrate             plain SQL files, applied in order, each in one transaction, once
outbox              side effects waiting to leave the database
pinned              what a query reads, in one snapshot
pipelines           pipelines and lists of tickers
registry            what is deployed, as rows
table_statistics    fresh statistics for the planner
task_logs           what operators wrote, kept in the transaction of the report that brought it
tasks               the life of a task
tokens              signing keys and opaque tokens, as stored
trigger             what the trigger keeps in the database: offsets, pipelines, launches
versions            versions of DAGs, and replays of the past
wake_messages       the tables behind the local wake-up queue
"""
