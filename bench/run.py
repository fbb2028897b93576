"""`python -m bench.run SUITE`: measure one suite, or `all` of them, and print how we compare.

Exits with 0 when the measurements could be taken, whether or not every bar holds (the table and
`bench/out/results.json` say that), with 2 when the named suite is unknown or does not exist yet.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from bench import results

SUITES = ("control", "spark", "query", "deploy", "trigger", "sources", "sink", "ui", "growth")


def main(argv: list[str]) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    wanted = argv[0] if argv else "all"
    if wanted != "all" and wanted not in SUITES:
        print(f"unknown suite {wanted!r}; there are: all, {', '.join(SUITES)}")
        return 2
    began = time.monotonic()
    print_machine_facts()
    rows: list[results.Row] = []
    for suite in SUITES if wanted == "all" else (wanted,):
        if importlib.util.find_spec(f"bench.suites.{suite}") is None:
            print(f"suite {suite} does not exist yet")
            if wanted != "all":
                return 2
            continue
        print(f"suite {suite}", flush=True)
        measured = importlib.import_module(f"bench.suites.{suite}").run(progress_since(began))
        results.save(suite, measured)
        rows += measured
    if rows:
        print(f"\n{results.table(rows)}\n")
        barred = [row for row in rows if row.bar is not None]
        print(
            f"{sum(bool(row.holds) for row in barred)} of {len(barred)} bars hold; ratio ≥ 1: ours is better"
        )
        print(f"written to {os.path.relpath(results.RESULTS)}")
    print(f"total time {time.monotonic() - began:.0f} s")
    return 0


def progress_since(began: float) -> Callable[[str], None]:
    def progress(line: str) -> None:
        print(f"  [{time.monotonic() - began:5.0f} s] {line}", flush=True)

    return progress


def print_machine_facts() -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"machine: {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB memory, load {load}")
    print(f"system:  {platform.system()} {platform.release()} {platform.machine()}")
    print(f"python:  {platform.python_version()}", flush=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("interrupted; everything that was started has been stopped")
