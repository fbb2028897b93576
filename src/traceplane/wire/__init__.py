"""The messages that processes exchange, as types: one module per contract.

alerts        the gateway's public API: alerts that were found, acknowledgements and silences
audit         the same: the audit log
channels      the same: channels, and the messages that were queued for them
control       the same: events, backfills, tasks, status
coverage      the same: what a dataset holds, as a strip of cells
dead_letters  the same: dead letters of buffered datasets
deploys       the same: deploys and versions of DAGs
events        the same: events as people look at them, and everything that one of them caused
files         the same: file sources
graph         the same: jobs and datasets as a graph, and the stream of changes
health        the same: processes, and what the doctor finds
iceberg       the same: datasets as Iceberg tables
invocations   the calls of functions by the dispatcher, and what they answer
jobs          the gateway's public API: pauses of jobs, and their batches
people        the same: people, service accounts, roles and tokens
pipelines     the same: pipelines, lists of tickers, executions
queries       the same: queries and the catalog
secrets       the same: secrets, without their values
scalars       the base and the field types that all contracts share
sign_in       the gateway's public API: identity providers and device codes
tasks         the internal API between the dispatcher and its workers
webhooks      the gateway's public API: deliveries to webhook sources
"""
