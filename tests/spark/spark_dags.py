"""DAGs whose jobs read numbers on Spark."""

from __future__ import annotations


def dag(
    name: str,
    *jobs: str,
    entrypoint: str = "spark_jobs:numbers",
    defaults: str = "{retry: {base: 50ms}, max_attempts: 2}",
) -> str:
    """A manual source, a job that makes numbers of its positions, and the jobs that read them."""
    source = f"""
version: 1
dag: {name}
defaults: {defaults}
jobs:
- {{name: {name}-ticks, activation: source, source: {{kind: manual}}, outputs: [{{dataset: {name}.in}}]}}
- name: {name}-numbers
  runtime: python
  operator: python
  inputs: [{{from: {{dataset: {name}.in}}}}]
  outputs: [{{name: numbers, dataset: {name}.numbers}}]
  config: {{entrypoint: "{entrypoint}"}}
"""
    return source + "".join(jobs)


def job(
    dag: str, name: str, config: str, *, operator: str = "pyspark", outputs: str = "", more: str = ""
) -> str:
    return f"""
- name: {dag}-{name}
  runtime: spark
  operator: {operator}
  inputs: [{{name: numbers, from: {{dataset: {dag}.numbers}}}}]
  outputs: [{outputs or f"{{name: {name}, dataset: {dag}.{name}}}"}]
  config: {config}
  {more}
"""
