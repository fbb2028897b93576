"""A range larger than memory streams through: a Spark job over an input that neither its process nor Spark can hold.

Peaks are what the kernel noted (VmHWM), of the task's own process, of the worker and of the Spark server's JVM.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.compute as compute
import pyarrow.parquet as parquet

from bench import ours_control, results
from bench.peers import measure
from bench.spark_operators import LARGE_ROW_BYTES

ROWS = 1_250_000
LIMIT_MB = 512
"""Of Spark's heap, and of the task's process."""
JVM_BESIDE_HEAP_MB = 512
"""Code, classes, threads and buffers of a JVM, none of which grow with the data."""
WORKER_MB = 512

DAG = """
version: 1
dag: {name}
defaults: {{max_attempts: 1, timeout: 10m}}
jobs:
- {{name: go, activation: source, source: {{kind: manual}}, outputs: [{{dataset: {name}.in}}]}}
- name: fill
  runtime: python
  operator: python
  inputs: [{{from: {{job: go}}}}]
  outputs: [{{name: large, dataset: {name}.large}}]
  config: {{entrypoint: "bench.spark_operators:large", rows: {rows}}}
- name: through
  runtime: spark
  operator: pyspark
  inputs: [{{name: large, from: {{job: fill}}}}]
  outputs: [{{name: through, dataset: {name}.through}}]
  config: {{entrypoint: "bench.spark_operators:through"}}
"""

SETTINGS = f"""
[runtimes.spark]
driver = "queue"
queue = "spark"
capabilities = ["reactive", "spark"]
limits = {{ memory_mb = {LIMIT_MB}, processes = 256, open_files = 1024 }}
"""

Progress = Callable[[str], None]


def run(database_url: str, progress: Progress) -> list[results.Row]:
    peaks = asyncio.run(_measure(database_url, progress))
    input_mb = ROWS * LARGE_ROW_BYTES / 2**20
    note = f"larger than memory: {ROWS:,} rows of {input_mb:,.0f} MB, Spark's heap and the task have {LIMIT_MB} MB"
    limits = {"task": LIMIT_MB, "worker": WORKER_MB, "jvm": LIMIT_MB + JVM_BESIDE_HEAP_MB}
    titles = {"task": "the task's process", "worker": "the worker", "jvm": "Spark's JVM"}
    return [
        results.compare(
            suite="spark",
            name=f"larger than memory, peak of {titles[role]}",
            unit="MB",
            better="lower",
            ours=peaks.of[role] / 1024,
            peer="target",
            theirs=float(limit),
            bar=1.0,
            note=note,
        )
        for role, limit in limits.items()
    ]


@dataclass
class Peaks:
    """The greatest resident size of a process of each role, in kB."""

    of: dict[str, int] = field(default_factory=lambda: {"task": 0, "worker": 0, "jvm": 0})

    def look(self) -> None:
        processes = dict(_processes())
        workers = [
            pid for pid, (_, command) in processes.items() if command.endswith("worker --runtime spark")
        ]
        for pid, (_, command) in processes.items():
            line = _line(processes, pid)
            if not set(line) & set(workers):
                continue
            if any("SparkConnectServer" in processes[one][1] for one in line):
                role = "jvm" if "SparkConnectServer" in command else None
            else:
                role = "worker" if pid in workers else "task"
            if role is not None:
                self.of[role] = max(self.of[role], _peak(pid))


def _processes() -> Any:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            yield int(folder.name), (parent, (folder / "cmdline").read_text().replace("\0", " ").strip())
        except OSError:
            continue


def _line(processes: dict[int, tuple[int, str]], pid: int) -> list[int]:
    """A process and those it comes from."""
    found = []
    while pid in processes:
        found.append(pid)
        pid = processes[pid][0]
    return found


def _peak(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


async def _measure(url: str, progress: Progress) -> Peaks:
    peaks = Peaks()
    with tempfile.TemporaryDirectory(prefix="bench-memory-", ignore_cleanup_errors=True) as folder:
        settings = Path(folder) / "traceplane.toml"
        settings.write_text(SETTINGS)
        async with ours_control.stand(url, dag=DAG, rows=ROWS) as made:
            changes = {
                "TRACEPLANE_CONFIG": str(settings),
                "TRACEPLANE_SPARK_MEMORY_MB": str(LIMIT_MB),
                "TRACEPLANE_SPARK_MASTER": "local[2]",
            }
            commands = [made.command("dispatcher"), made.command("worker", "--runtime", "python")]
            commands.append(made.command("worker", "--runtime", "spark"))
            with ours_control.environment(changes), measure.worker_processes(*commands):
                await made.send(0, 1)
                await _done(made, peaks)
            await _check(made, Path(made.environment["TRACEPLANE_HOME"]) / "objects")
    told = ", ".join(f"{role} {peak / 1024:,.0f} MB" for role, peak in peaks.of.items())
    progress(f"larger than memory: peaks of {told}; {ROWS:,} rows are correct")
    return peaks


async def _done(made: Any, peaks: Peaks) -> None:
    async with asyncio.timeout(400):
        while True:
            rows = await made.connection.fetch(
                "select j.name, t.state::text, t.error::text from tasks t join jobs j using (job_id)"
                " join dags d using (dag_id) where d.name = $1",
                made.dag,
            )
            if dead := [row["error"] for row in rows if row["state"] == "dead"]:
                raise RuntimeError(f"the job failed: {dead[0]}")
            if any(row["name"] == "through" and row["state"] == "completed" for row in rows):
                return
            await asyncio.to_thread(peaks.look)
            await asyncio.sleep(0.2)


async def _check(made: Any, objects: Path) -> None:
    """Every row of the input is in the output once."""
    commits = await made.connection.fetch(
        "select c.files, c.row_count from datasets d join dataset_commits c"
        " on c.generation_id = d.current_generation_id where d.dataset_id = $1",
        f"{made.dag}.through",
    )
    files = [objects / file["path"] for commit in commits for file in json.loads(commit["files"])]
    numbers = parquet.read_table(files, columns=["n"]).column("n")
    assert len(numbers) == sum(commit["row_count"] for commit in commits) == ROWS, len(numbers)
    assert compute.sum(numbers).as_py() == ROWS * (ROWS - 1) // 2
    assert compute.count_distinct(numbers).as_py() == ROWS


if __name__ == "__main__":
    from bench.postgres_server import running_postgres

    with running_postgres() as server:
        for row in run(server.fresh_database(), lambda line: print(line, flush=True)):
            print(row)
    raise SystemExit(os.EX_OK)
