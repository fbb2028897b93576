"""The messages that processes exchange, as types: one module per contract.

audit        the gateway's public API: the audit log
control      the gateway's public API: events, backfills, tasks, status
deploys      the same: deploys and versions of DAGs
files        the same: file sources
invocations  the calls of functions by the dispatcher, and what they answer
jobs         the gateway's public API: pauses of jobs, and their batches
people       the same: people, service accounts, roles and tokens
pipelines    the same: pipelines, lists of tickers, executions
queries      the same: queries and the catalog
secrets      the same: secrets, without their values
scalars      the base and the field types that all contracts share
sign_in      the gateway's public API: identity providers and device codes
tasks        the internal API between the dispatcher and its workers
webhooks     the gateway's public API: deliveries to webhook sources
"""
