"""`make demo`: a walk through the platform, in the terminal and in the web UI at once.

It follows a chain into Spark tables while processes are killed and the chain reorganizes, tells a desk of large
transfers, deploys a version and rolls it back, and lets signals launch pipelines. What each part has proven is said at
its end, and all of it is checked again when everything is done. Then, at a terminal, the platform stays up.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from examples.demo_alerts import AlertDesk, Watch, serve_desk
from examples.demo_failures import DemoFailed, Processes, check_tasks, progress, sentence, waiting
from examples.demo_trigger import PIPELINES, SIGNALS, Desk
from traceplane import telemetry
from traceplane.chain.extract import fetch_range
from traceplane.chain.rpc import RpcClient, RpcSettings
from traceplane.chain.simulated.server import Simulator, serve
from traceplane.cli import profile, supervisor
from traceplane.client import Client
from traceplane.errors import PlatformError
from traceplane.gateway import pages
from traceplane.http_service.client import Caller
from traceplane.postgres.database import Database
from traceplane.settings import Settings, load
from traceplane.wire.control import StatusResponse
from traceplane.wire.deploys import DeployRequest, DeployResponse, MovedResponse, RollbackRequest
from traceplane.wire.sign_in import BrowserLink

HERE = Path(__file__).parent
DAG = HERE / "chain/dag.yaml"
FIRST_BLOCKS, BATCH = 9, 10
TOP_TOKENS = """select first_block || '-' || last_block as blocks, token_address, transfers, senders
   from chain.top_tokens order by first_block, transfers desc, token_address"""
TOP_ORDER = ("first_block", "-transfers", "token_address")
RANKED = "select * from volumes order by transfers desc, token_address limit {limit}"
JOBS = ("ingest", "transfers", "fees", "volumes", "top_tokens", "check")
INGESTED = ("blocks", "transactions", "receipts", "logs")
DERIVED = ("token_transfers",)
BY_BLOCK = ("ingest", "transfers", "fees")
EQUAL = ", equal to the chain"
STILL_SECONDS = 300.0
"""How long nothing may change while something is waited for: Spark takes minutes to start on a busy machine."""
LONGEST_SECONDS = 1800.0
"""How long one thing is waited for, also while something changes: a loop changes things for ever."""
BLOCK_SECONDS = 4.0
"""Between the blocks of a chain that nobody walks through any more."""


def say(text: str) -> None:
    print(text, flush=True)


def proven(what: str, holds: bool) -> None:
    say(f"   {'✓' if holds else 'NOT'} {what.strip()}")


class Demo:
    def __init__(
        self,
        settings: Settings,
        database: Database,
        caller: Caller,
        node: Simulator,
        processes: Processes,
        desk: AlertDesk,
    ) -> None:
        self.settings, self.database, self.caller, self.node = settings, database, caller, node
        self.processes = processes
        self.watch = Watch(desk, database, caller, self.until)
        self.started = time.monotonic()
        self.has_pages = pages.are_built()

    @property
    def head(self) -> int:
        return self.node.ledger.head

    async def run(self) -> bool:
        await self.until(self.gateway_answers, "the gateway answers")
        say(f"Postgres, a dispatcher, a gateway, a trigger and a Python worker run ({self.seconds()}).")
        if self.has_pages:
            say(f"\nWatch what follows: {await self.link()}")
        await self.ingest()
        silent = await self.watch.begin(self.settled)
        watched_from = self.head + 1
        self.chapter("4. An alert", "/alerts")
        say(
            f"   Deployed an alert on large transfers. It found {silent} in history, and tells nobody of these."
        )
        proven("nothing was sent", not self.watch.desk.messages)
        await self.follow_through_crashes()
        exact = await self.reorganize()
        rebuilt = await self.rebuild()
        moved = await self.deploy_and_roll_back()
        await self.show_top_tokens()
        launches = await self.trigger()
        return await self.account(exact, watched_from, rebuilt, moved, launches)

    def chapter(self, title: str, path: str) -> None:
        """What is shown now, and on which page of the web UI."""
        say(f"\n{title}" + (f"  ·  {self.settings.gateway_address}{path}" if self.has_pages else ""))

    async def ingest(self) -> None:
        self.chapter("1. Ingest", "/graph?dag=chain")
        deployed = await self.deploy()
        jobs = [line.split()[2] for line in deployed.text.splitlines() if line.startswith("+ job")]
        say(f"   Deployed DAG {deployed.dag} version {deployed.version} with {len(jobs)} jobs.")
        await self.until(self.ingested, "all blocks are ingested")
        tables, _ = await self.compared(INGESTED)
        say(f"   Ingested the chain's {self.head + 1} blocks ({self.seconds()}).")
        names = ", ".join(what.strip().removesuffix(EQUAL) for what in tables)
        proven(names + EQUAL, all(tables.values()))
        self.chapter("2. Derived data, on Spark", "/datasets/chain.volumes")
        say("   Spark starts; its tasks wait in the queue until it runs.")
        await self.until(self.settled, "all blocks are processed")
        _, chain = await self.compared()
        say(
            f"   A PySpark function found the transfers, and SQL summed them for every ten blocks ({self.seconds()})."
        )
        for what, holds in (await self.compared(DERIVED))[0].items():
            proven(what, holds)
        proven(*await self.sums_hold(chain["token_transfers"]))
        self.chapter("3. A join", "/datasets/chain.fees")
        say(
            "   Transfers are joined with the receipts of their transactions, as soon as both of a block are there."
        )
        proven(*await self.fees_hold(chain))

    async def deploy(self, limit: int = 3) -> DeployResponse:
        """The example; `limit`: how many tokens each ranking has."""
        yaml = DAG.read_text().replace("http://127.0.0.1:8545", self.node.url)
        yaml = yaml.replace(RANKED.format(limit=3), RANKED.format(limit=limit))
        return await self.caller.call(
            "POST", "/api/v1/deploy", DeployResponse, DeployRequest(yaml, "dag.yaml")
        )

    async def follow_through_crashes(self) -> None:
        self.chapter("5. Crashes", "/tasks?dag=chain")
        self.node.ledger.mine(6)
        running = await self.until(self.spark_tasks_running, "a Spark task runs")
        self.processes.kill("spark-1")
        say(
            f"   6 more blocks; killed the Spark worker and its JVM (SIGKILL) with {running} of its tasks running."
        )
        self.processes.kill("dispatcher")
        self.node.ledger.mine(4)
        say("   Killed the dispatcher (SIGKILL); 4 more blocks while it was down.")
        await self.until(self.settled, "all blocks are processed")
        say(f"   Both were restarted ({self.seconds()}).")
        tables, _ = await self.compared()
        proven(f"all {self.head + 1} blocks are processed, equal to the chain", all(tables.values()))

    async def reorganize(self) -> bool:
        """Replaces the newest blocks; returns whether exactly what depends on them was recomputed."""
        self.chapter("6. A reorganization, and its cascade", "/graph?dag=chain")
        async with self.database.transaction() as tx:
            mark = await tx.value("select max(event_id) from events")
        old_head, depth = self.head, 3
        self.node.ledger.fork(depth, depth)
        await self.until(self.settled, "all blocks are processed")
        changed = range(old_head - depth + 1, self.head + 1)
        say(f"   Blocks {changed[0]} to {changed[-1]} were replaced. Recomputed only these:\n")
        recomputed = await self.scopes_since(mark)
        for job in JOBS:
            say(
                f"      {job:<12} {' '.join(f'{a}' if a == b else f'{a}-{b}' for a, b in sorted(recomputed[job]))}"
            )
        blocks = {(n, n) for n in changed}
        ranges = {(n - n % BATCH, n - n % BATCH + BATCH - 1) for n in changed}
        await self.until(self.watch.sent, "all messages are sent")
        exact = all(set(recomputed[job]) == (blocks if job in BY_BLOCK else ranges) for job in JOBS)
        proven("exactly what depends on the changed blocks was recomputed", exact)
        taken_back = self.watch.desk.told("retraction").total()
        proven(f"{taken_back} alerts of transfers that are gone were retracted", taken_back > 0)
        return exact

    async def rebuild(self) -> int:
        self.chapter("7. A deploy of the alert", "/deploys?dag=watch")
        rebuilt = await self.watch.rebuild(self.settled)
        say(f"   With another column: all blocks were evaluated anew ({self.seconds()}).")
        proven("no message was sent twice", rebuilt == 0)
        return rebuilt

    async def deploy_and_roll_back(self) -> dict[str, bool]:
        """A version that ranks five tokens instead of three, built beside the one that serves, and back."""
        self.chapter("8. A deploy, its cutover and its rollback", "/deploys?dag=chain")
        before = await self.rows("top_tokens", *TOP_ORDER)
        await self.deploy(limit=5)
        await self.until(self.watch.serving("chain", 2), "version 2 serves")
        after = await self.rows("top_tokens", *TOP_ORDER)
        rebuilt = await self.rebuilt_jobs()
        say(f"   Version 2 was built from all of history while version 1 served: only {', '.join(rebuilt)}.")
        say(f"   At its cutover, {len(before)} ranked tokens became {len(after)} ({self.seconds()}).")
        await self.caller.call("POST", "/api/v1/rollback", MovedResponse, RollbackRequest("chain"))
        restored = await self.rows("top_tokens", *TOP_ORDER)
        say("   Rolled back: version 1 serves again.")
        checks = {
            "the deploy rebuilt only the job that changed": rebuilt == ["top_tokens"],
            "version 2 has all rows of version 1, and more": len(after) > len(before)
            and all(row in after for row in before),
            "the rollback brought back exactly the rows of version 1": restored == before,
        }
        for what, holds in checks.items():
            proven(what, holds)
        return checks

    async def show_top_tokens(self) -> None:
        self.chapter("9. A query", "/queries")
        say(f"\n   {TOP_TOKENS}\n")
        say("      blocks  token                                       transfers  senders")
        client = Client(self.settings.gateway_address, str(self.settings.user_token))
        rows = (await asyncio.to_thread(client.query, TOP_TOKENS)).to_pylist()
        for row in rows:
            say(f"      {row['blocks']:<7} {row['token_address']}  {row['transfers']:>9} {row['senders']:>8}")
        proven("the rows of one consistent state", len(rows) == len(await self.rows("top_tokens")))

    async def trigger(self) -> dict[str, bool]:
        self.chapter("10. Signals launch pipelines", "/tasks?dag=desk")
        desk = Desk(self.settings, self.database, self.caller, self.processes)
        held = await desk.run(self.until)
        say(
            f"   {PIPELINES} pipelines watched {SIGNALS} signals; the trigger was killed (SIGKILL) midway"
            f" ({self.seconds()})."
        )
        for what, holds in held.items():
            proven(what.strip(), holds)
        return held

    async def account(
        self,
        exact: bool,
        watched_from: int,
        rebuilt: int,
        moved: dict[str, bool],
        launches: dict[str, bool],
    ) -> bool:
        """Whether every guarantee held: compares each dataset with the chain, without Spark or the platform."""
        checks, expected = await self.compared()
        checks |= dict((await self.sums_hold(expected["token_transfers"]), await self.fees_hold(expected)))
        async with self.database.transaction() as tx:
            counts = await tx.rows(
                "select count(*) filter (where attempt > 1) as interrupted,"
                " count(*) filter (where state <> 'completed') as unfinished from tasks"
                " join jobs using (job_id) where activation <> 'source'"
            )
        checks["no discrepancy between what is stored and the node"] = not await self.rows("discrepancies")
        checks["every task completed"] = counts[0]["unfinished"] == 0
        checks[f"work was interrupted: {counts[0]['interrupted']} needed a second attempt"] = (
            counts[0]["interrupted"] > 0
        )
        checks["the reorg recomputed exactly what depends on the changed blocks"] = exact
        checks |= self.watch.checks(expected["token_transfers"].to_pylist(), watched_from, rebuilt)
        checks |= moved | launches
        say("\nAll of it once more, against the chain:\n")
        for what, holds in checks.items():
            say(f"      {'ok ' if holds else 'NOT'}  {what}")
        return all(checks.values())

    async def stay(self) -> None:
        """Keeps the platform up until somebody ends it; the chain goes on meanwhile, and reorganizes now and then."""
        say("\nThe platform stays up, and the chain goes on. Ctrl-C ends both.")
        if self.has_pages:
            say(f"Another link for a browser: {await self.link()}")
        for turn in itertools.count(1):
            await asyncio.sleep(BLOCK_SECONDS)
            self.processes.check()
            if turn % 10:
                self.node.ledger.mine(1)
            else:
                self.node.ledger.fork(2, 3)

    # Looking ---------------------------------------------------------------------------------------

    async def compared(
        self, tables: Sequence[str] = INGESTED + DERIVED
    ) -> tuple[dict[str, bool], dict[str, pa.Table]]:
        """Whether each of these tables equals the chain; and what the chain says."""
        async with RpcClient(RpcSettings(endpoints=(self.node.url,))) as client:
            expected = await fetch_range(client, 0, self.head, tables)
        order = ("block_number", "transaction_index", "log_index")
        checks = {
            f"{table.num_rows:>5} {name}{EQUAL}": await self.rows(dataset, *order)
            == in_order(table.to_pylist(), *order)
            for name, table in expected.items()
            for dataset in ["transfers" if name == "token_transfers" else name]
        }
        return checks, expected

    async def sums_hold(self, transfers: pa.Table) -> tuple[str, bool]:
        sums = token_sums(transfers)
        found = await self.rows("volumes", "first_block", "token_address")
        keys = ("first_block", "token_address", "transfers", "senders")
        return f"{len(sums):>5} sums per token, equal to a recomputation in plain Python", [
            {key: row[key] for key in keys} for row in found
        ] == in_order(sums, "first_block", "token_address")

    async def fees_hold(self, chain: dict[str, pa.Table]) -> tuple[str, bool]:
        fees = token_fees(chain["token_transfers"], chain["receipts"])
        found = await self.rows("fees", "block_number", "token_address")
        return f"{len(fees):>5} joined rows, equal to a join in plain Python", found == in_order(
            fees, "block_number", "token_address"
        )

    async def rebuilt_jobs(self) -> list[str]:
        """The jobs of version 2 of the chain's DAG that version 1 does not have."""
        async with self.database.transaction() as tx:
            rows = await tx.rows(
                "select j.name from dag_versions v join dags d using (dag_id)"
                " join dag_version_jobs m using (dag_version_id) join jobs j using (job_id)"
                " where d.name = 'chain' group by j.job_id, j.name having min(v.number) = 2"
                " order by j.name"
            )
        return [row["name"] for row in rows]

    async def rows(self, dataset: str, *order: str) -> list[dict[str, Any]]:
        """What a dataset holds, read from its committed files."""
        async with self.database.transaction() as tx:
            found = await tx.rows(
                "select c.files from dataset_commits c join datasets d on d.current_generation_id = c.generation_id"
                " where d.dataset_id = $1 and c.superseded_by is null",
                f"chain.{dataset}",
            )
        store = self.settings.object_store_root
        files = [store / file["path"] for record in found for file in record["files"]]
        return in_order((row for file in files for row in parquet.read_table(file).to_pylist()), *order)

    async def scopes_since(self, mark: int) -> dict[str, Counter[tuple[int, int]]]:
        async with self.database.transaction() as tx:
            found = await tx.rows(
                "select distinct j.name, t.task_id, t.range_start, t.range_end from tasks t join jobs j using (job_id)"
                " join task_inputs i using (task_id) where i.event_id > $1",
                mark,
            )
        scopes: dict[str, Counter[tuple[int, int]]] = defaultdict(Counter)
        for row in found:
            scopes[row["name"]][row["range_start"], row["range_end"]] += 1
        return scopes

    async def until(
        self,
        condition: Callable[[], Awaitable[Any]],
        what: str,
        seconds: float = STILL_SECONDS,
        at_most: float = LONGEST_SECONDS,
    ) -> Any:
        """Waits until the condition holds. Fails on a dead task, on a process that does not start, if nothing changes
        for `seconds`, or `at_most` seconds later."""
        began = moved = time.monotonic()
        done: dict[str, Any] = {}
        while True:
            value = await condition()
            self.processes.check()
            await check_tasks(self.database)
            if value:
                return value
            if (changed := await progress(self.database)) != done:
                moved, done = time.monotonic(), changed
            now = time.monotonic()
            if now > moved + seconds or now > began + at_most:
                how = "without progress" if now > moved + seconds else "in spite of progress"
                reasons = "; ".join((await waiting(self.database), *self.processes.troubles()))
                raise DemoFailed(
                    f"timed out after {now - began:.0f} s, {how}, waiting until {what}: {reasons}"
                )
            await asyncio.sleep(0.05)

    async def link(self) -> str:
        return (await self.caller.call("POST", "/auth/browser-link", BrowserLink)).url

    async def gateway_answers(self) -> bool:
        try:
            await self.caller.call("GET", "/api/v1/status", StatusResponse)
        except PlatformError:
            return False
        return True

    async def spark_tasks_running(self) -> int:
        async with self.database.transaction() as tx:
            return int(
                await tx.value(
                    "select count(*) from tasks join jobs using (job_id) where state = 'running' and runtime = 'spark'"
                )
            )

    async def settled(self) -> bool:
        """The newest event of every block matches the chain, and no task except the follower is unfinished."""
        return await self._up_to_date("%")

    async def ingested(self) -> bool:
        """The same, as far as no other job than the one that ingests is concerned."""
        return await self._up_to_date("ingest")

    async def _up_to_date(self, jobs: str) -> bool:
        async with self.database.transaction() as tx:
            said = await tx.rows(
                "select distinct on (range_start) range_start, emission from events join datasets using (dataset_uuid)"
                " where dataset_id = 'chain.head' order by range_start, event_id desc"
            )
            open_tasks = await tx.value(
                "select count(*) from tasks join jobs using (job_id) where name like $1"
                " and activation <> 'source' and state in ('queued', 'dispatched', 'running')",
                jobs,
            )
        hashes = {row["range_start"]: row["emission"].rpartition("0x")[2] for row in said}
        chain = {number: self.node.ledger.hash(number).hex() for number in range(self.head + 1)}
        return hashes == chain and open_tasks == 0

    def seconds(self) -> str:
        return f"{time.monotonic() - self.started:.0f} s"


def in_order(rows: Iterable[dict[str, Any]], *order: str) -> list[dict[str, Any]]:
    """Sorted by the columns that they have; `-name` is descending."""

    def key(row: dict[str, Any]) -> list[Any]:
        return [-row[c[1:]] if c.startswith("-") else row[c] for c in order if c.lstrip("-") in row]

    return sorted(rows, key=key)


def token_sums(transfers: pa.Table) -> list[dict[str, Any]]:
    """Transfers and senders of each ERC-20 token, of every ten blocks."""
    senders: dict[tuple[int, str], list[str]] = defaultdict(list)
    for row in transfers.to_pylist():
        if row["token_type"] == "erc20":
            first = row["block_number"] // BATCH * BATCH
            senders[first, row["token_address"]].append(row["from_address"])
    return [
        {"first_block": first, "token_address": token, "transfers": len(moved), "senders": len(set(moved))}
        for (first, token), moved in senders.items()
    ]


def token_fees(transfers: pa.Table, receipts: pa.Table) -> list[dict[str, Any]]:
    """Of each block, each token's transfers and the gas of their transactions."""
    gas = {(row["block_number"], row["transaction_index"]): row["gas_used"] for row in receipts.to_pylist()}
    used: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row in transfers.to_pylist():
        used[row["block_number"], row["token_address"]].append(
            gas[row["block_number"], row["transaction_index"]]
        )
    return [
        {"block_number": block, "token_address": token, "transfers": len(each), "gas_used": sum(each)}
        for (block, token), each in used.items()
    ]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def settings_in(folder: Path) -> Settings:
    return load(
        environment={},
        home=folder,
        dispatcher_port=free_port(),
        gateway_port=free_port(),
        trigger_port=free_port(),
        trigger_preset="low_latency",
        kafka_auto_offset_reset="earliest",
        log_level="error",
        reap_grace_seconds=1.0,
        worker_code_paths=[HERE.parent],
        operator_network_allow=["127.0.0.1"],  # where the simulated chain is
        outgoing_allow=["127.0.0.1"],  # where the desk is
        spark_compiler="quick",
        worker_concurrency=2,  # each Spark session starts Python processes of its own, which takes seconds
    )


async def main(folder: Path, *, stays: bool) -> bool:
    """Whether every guarantee held. `stays`: afterwards the platform runs until Ctrl-C."""
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, this.cancel)
    telemetry.configure("demo", log_level="error", log_format="text")
    processes = Processes(folder)
    started, server = await asyncio.to_thread(
        profile.start_postgres, settings_in(folder), die_with_parent=True
    )
    try:
        settings = replace(await profile.prepare(started), log_level="info")  # into the logs
        assert settings.state_url is not None
        database = await Database.connect(settings.state_url, connections=2)
        caller = Caller(settings.gateway_address, settings.user_token)
        try:
            async with (
                serve(seed=7, blocks=FIRST_BLOCKS) as node,
                serve_desk() as desk,
                running(settings, processes),
            ):
                demo = Demo(settings, database, caller, node, processes, desk)
                good = await demo.run()
                if good:
                    say("\nNothing was lost, nothing was duplicated.")
                if good and stays:
                    await until_interrupted(demo.stay())
                return good
        finally:
            await caller.close()
            await database.close()
    finally:
        if server is not None:
            await asyncio.to_thread(server.destroy)


async def until_interrupted(work: Coroutine[Any, Any, None]) -> None:
    """Ctrl-C is how this is meant to end."""
    interrupted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    working, waiting = asyncio.create_task(work), asyncio.create_task(interrupted.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        else:
            say("\nStopping …")
    finally:
        working.cancel()
        waiting.cancel()


@contextlib.asynccontextmanager
async def running(settings: Settings, processes: Processes) -> AsyncIterator[None]:
    """The platform's processes, each with its own log."""
    stop = asyncio.Event()
    with contextlib.ExitStack() as logs:
        children = [
            replace(child, output=logs.enter_context(processes.log(child.name).open("w")).fileno())
            for child in supervisor.services(settings, workers=1, trigger=True)
        ]
        supervised = asyncio.create_task(
            supervisor.supervise(children, stop, started=processes.started, expected=processes.was_killed)
        )
        supervised.add_done_callback(processes.ended)
        try:
            yield
        finally:
            stop.set()
            await asyncio.wait((supervised,))


def run() -> int:
    """Returns the exit code. A failure is reported in one sentence, and the logs are kept."""
    say(
        "Traceplane: a chain's blocks become tables on Spark, while processes are killed and the chain reorganizes.\n"
    )
    folder = Path(tempfile.mkdtemp(prefix="traceplane-demo-"))
    folder.chmod(0o711)  # the sandbox and Postgres run as other users when this one is root
    code = 1
    try:
        good = asyncio.run(main(folder, stays=sys.stdout.isatty() and not os.environ.get("CI")))
        if not good:
            say(f"\nA guarantee was broken (logs: {folder}).")
        code = 0 if good else 1
    except KeyboardInterrupt:
        code = 130
    except asyncio.CancelledError:
        code = 143
    except Exception as error:
        print(f"\nThe demo failed: {sentence(error)} (logs: {folder})", file=sys.stderr, flush=True)
    if code != 1:
        shutil.rmtree(folder, ignore_errors=True)
    return code
