"""DAG files as text, and what reading them gives."""

from __future__ import annotations

import pytest

from traceplane.errors import SpecInvalid, SpecProblem
from traceplane.model.dag import (
    Dag,
    Job,
)
from traceplane.registry.spec import dag_file

RUNTIMES = frozenset({"spark", "python", "dispatcher", "lambda"})

FULL = """\
version: 1
dag: chain
description: Transfers of a chain
datasets:
  chain.logs:
    storage: postgres
    write_mode: direct
    description: Raw logs
    position: block_number
    columns: [{name: block_number, type: bigint, nullable: false, pii: true}]
  chain.ticks:
    partitions: {by: hour}
  chain.transfers:
    storage: postgres
    position: block_number
    unique_key: [block_number, token]
    indexes: [[chain]]
    columns:
    - {name: block_number, type: bigint}
    - {name: token, type: string}
    - {name: chain, type: int}
    - {name: final, type: boolean}
  chain.daily:
    columns:
    - {name: amount, type: 'decimal(38, 0)'}
defaults:
  timeout: 10m
  scaling: {max_concurrency: 8}
  max_attempts: 7
jobs:
- name: alerts
  operator: alert_evaluate
  inputs: [{name: large, from: {job: transfers}, where: {token: usdt, chain: 1, final: true}}]
- name: daily
  description: Once a day
  operator: sql
  execution_strategy: Bulk
  batch: {size: 100}
  max_queue_depth: 10
  priority: backfill
  inputs: [{from: {job: transfers}}]
  outputs: [{dataset: chain.daily}]
- name: ingest
  activation: source
  source: {kind: always_on}
  runtime: python
  operator: block_follower
  config: {address: 0xdAC17F958D2ee523a2206206994597C13D831ec7, since: 2024-01-01, depth: 12, on: [a, ~, 1.5]}
  outputs: [{name: logs, dataset: chain.logs}]
- name: transfers
  when: any
  inputs: [{from: {job: ingest, output: logs}}, {from: {dataset: market.prices}}]
  operator: pyspark
  outputs: [{dataset: chain.transfers}]
  update_strategy: append
  unique_key: [tx_hash, log_index]
  scaling: {mode: backfill}
  max_queue_depth: 1000
  max_queue_age: 5m
  timeout: 90
  lease: 500ms
  max_attempts: 3
  retry: {base: 1.5s, max: 2h}
- name: nightly
  activation: source
  source: {kind: cron, schedule: '*/5 0-6 1,15 * 1-5'}
  outputs: [{dataset: chain.ticks}]
"""

HEAD = "version: 1\ndag: d\njobs:\n"
DAYS = "version: 1\ndag: d\ndatasets: {x: {partitions: {by: day}}}\njobs:\n"
SOURCE = "- {name: a, activation: source, source: {kind: manual}, outputs: [{dataset: x}]}\n"


def parse(text: str) -> Dag:
    return dag_file.parse(text, "dag.yaml", known_runtimes=RUNTIMES)


def problems_of(text: str) -> tuple[SpecProblem, ...]:
    with pytest.raises(SpecInvalid) as caught:
        parse(text)
    return caught.value.problems


def job(dag: Dag, name: str) -> Job:
    return next(job for job in dag.jobs if job.name == name)
