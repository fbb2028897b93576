"""ethereum-etl: blocks, transactions and logs of a range into CSV files, by the jobs behind its own commands.

    backfill  --url of a node, --tasks number of blocks. {"seconds": …, "blocks": …, "transactions": …, "logs": …}

`export_blocks_and_transactions`, then `export_receipts_and_logs` for the hashes of the transactions, as its
documentation says. It computes in one process; here it gets one per core, each with a share of the range, and its
imports and the start of these processes are not counted.
"""

from __future__ import annotations

import csv
import inspect
import logging
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.peers import measure

PROCESSES = 2
THREADS = 2
BATCH = 200


def _use_old_names() -> None:
    """Its web3 asks for a function that Python 3.11 no longer has."""
    if not hasattr(inspect, "getargspec"):
        inspect.getargspec = lambda f: inspect.getfullargspec(f)[:4]  # type: ignore[attr-defined]


def export(url: str, first: int, last: int, folder: Path) -> dict[str, int]:
    from ethereumetl.jobs.export_blocks_job import ExportBlocksJob
    from ethereumetl.jobs.export_receipts_job import ExportReceiptsJob
    from ethereumetl.jobs.exporters.blocks_and_transactions_item_exporter import (
        blocks_and_transactions_item_exporter,
    )
    from ethereumetl.jobs.exporters.receipts_and_logs_item_exporter import receipts_and_logs_item_exporter
    from ethereumetl.providers.auto import get_provider_from_uri
    from ethereumetl.thread_local_proxy import ThreadLocalProxy

    logging.disable(logging.WARNING)
    blocks, transactions, logs = (
        folder / f"{name}-{first}.csv" for name in ("blocks", "transactions", "logs")
    )
    common: dict[str, Any] = {
        "batch_size": BATCH,
        "batch_web3_provider": ThreadLocalProxy(lambda: get_provider_from_uri(url, batch=True)),
        "max_workers": THREADS,
    }
    ExportBlocksJob(
        start_block=first,
        end_block=last,
        item_exporter=blocks_and_transactions_item_exporter(str(blocks), str(transactions)),
        export_blocks=True,
        export_transactions=True,
        **common,
    ).run()
    with transactions.open() as rows:
        ExportReceiptsJob(
            transaction_hashes_iterable=(row["hash"] for row in csv.DictReader(rows)),
            item_exporter=receipts_and_logs_item_exporter(None, str(logs)),
            export_receipts=False,
            export_logs=True,
            **common,
        ).run()
    files = {"blocks": blocks, "transactions": transactions, "logs": logs}
    return {name: _rows(path) for name, path in files.items()}


def _rows(path: Path) -> int:
    csv.field_size_limit(1 << 30)
    with path.open() as file:
        return sum(1 for _ in csv.reader(file)) - 1


def _share(url: str, first: int, last: int, folder: Path, ready: Any, go: Any, told: Any) -> None:
    import ethereumetl.cli  # noqa: F401 - everything it needs is imported before the clock runs

    ready.release()
    go.wait()
    told.put(export(url, first, last, folder))


def backfill(arguments: measure.Arguments) -> dict[str, object]:
    context = multiprocessing.get_context("fork")
    ready, go, told = context.Semaphore(0), context.Event(), context.SimpleQueue()
    size = -(-arguments.tasks // PROCESSES)
    with tempfile.TemporaryDirectory(prefix="etl-") as name:
        shares = [
            context.Process(
                target=_share,
                args=(
                    arguments.url,
                    first,
                    min(first + size, arguments.tasks) - 1,
                    Path(name),
                    ready,
                    go,
                    told,
                ),
            )
            for first in range(0, arguments.tasks, size)
        ]
        for share in shares:
            share.start()
        for _ in shares:
            ready.acquire()
        began = time.monotonic()
        go.set()
        counted = [told.get() for _ in shares]
        seconds = time.monotonic() - began
        for share in shares:
            share.join()
    return {"seconds": seconds, **{name: sum(one[name] for one in counted) for name in counted[0]}}


if __name__ == "__main__":
    _use_old_names()
    given = measure.parse_arguments()
    if given.measurement != "backfill":
        sys.exit(f"there is no measurement {given.measurement!r}")
    measure.report(backfill(given))
