"""DAG files for tests, put together from their jobs, so that a test writes out only what it is about.

DAG = dag("main", source("in"), job("copy", "in", "mid"), job("after", "mid", "out", "max_attempts: 1"))
"""

from __future__ import annotations


def dag(name: str, *jobs: str, defaults: str = "") -> str:
    """A file of these jobs, as `source`, `job` and `aggregator` write them, or as a test does."""
    head = f"version: 1\ndag: {name}\n" + (f"defaults: {defaults}\n" if defaults else "")
    return head + "jobs:\n" + "".join(jobs)


def source(dataset: str = "in", *, name: str = "numbers", kind: str = "manual") -> str:
    return f"- {{name: {name}, activation: source, source: {{kind: {kind}}}, outputs: [{{dataset: {dataset}}}]}}\n"


def job(
    name: str,
    reads: str | tuple[str, ...],
    writes: str,
    *more: str,
    entrypoint: str = "basic:copy",
    config: str = "",
) -> str:
    """A Python job that copies, unless another entrypoint is named; `more` are further lines of it."""
    if isinstance(reads, str):
        inputs = f"{{from: {{dataset: {reads}}}}}"
    else:
        inputs = ", ".join(f"{{name: i{n}, from: {{dataset: {read}}}}}" for n, read in enumerate(reads))
    fields = (
        "runtime: python",
        "operator: python",
        f"inputs: [{inputs}]",
        f"outputs: [{{dataset: {writes}}}]",
        f'config: {{entrypoint: "{entrypoint}"{config and f", {config}"}}}',
        *more,
    )
    return f"- name: {name}\n" + "".join(f"  {field}\n" for field in fields)


def batches(name: str, reads: str, writes: str, size: int, *more: str) -> str:
    """What says when a range of positions is complete; it runs in the dispatcher."""
    fields = (
        "runtime: dispatcher",
        "operator: aggregator",
        f"inputs: [{{from: {{dataset: {reads}}}}}]",
        f"outputs: [{{dataset: {writes}}}]",
        f"config: {{size: {size}}}",
        *more,
    )
    return f"- name: {name}\n" + "".join(f"  {field}\n" for field in fields)


SOURCE = dag("main", source())
"""The beginning of a file: a manual source of the dataset `in`, to which jobs are added."""
