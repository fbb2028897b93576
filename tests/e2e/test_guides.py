"""The examples of the guides, executed as they are written there, on one platform."""

from __future__ import annotations

import csv
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.terminal import Terminal, blocks
from traceplane.client import Client
from traceplane.errors import TraceplaneError

GUIDES = Path(__file__).parents[2] / "docs/guides"
DATA_IN, DATES, RUNS, SCHEDULES, TESTING, FILES, SECRETS, RIGHTS, PEOPLE = (
    (GUIDES / f"{name}.md").read_text()
    for name in (
        *("data_in", "scopes_and_dates", "when_jobs_run", "schedules", "testing", "files", "secrets"),
        *("rights_and_personal_data", "people"),
    )
)


def write_files(folder: Path, page: str, elsewhere: dict[str, str]) -> None:
    """The files of a page: a DAG is named after itself, Python by its first line."""
    for block in blocks(page, "yaml"):
        (dag,) = re.findall(r"^dag: (\w+)$", block, re.M)
        for place, here in elsewhere.items():
            block = block.replace(place, here)
        (folder / f"{dag}.yaml").write_text(block)
    for block in blocks(page, "python"):
        if name := re.match(r"# (\S+\.py)$", block, re.M):
            (folder / name[1]).parent.mkdir(exist_ok=True)
            (folder / name[1]).write_text(block)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def files_example(tmp_path: Path) -> Iterator[str]:
    """A server with the orders of three days."""
    served = tmp_path / "served"
    served.mkdir()
    for day in range(3):
        with (served / f"orders-{day}.csv").open("w") as file:
            csv.writer(file).writerows([("customer", "amount"), ("ada", 10 * day), ("bob", 1)])
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(served)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def until_answered(terminal: Terminal, query: str, *expected: tuple[Any, ...]) -> None:
    """Until the query has these rows; one over a dataset that has no columns yet has none."""
    client = Client(terminal.gateway, home=terminal.folder / ".traceplane")
    deadline = time.monotonic() + 180
    while True:
        answer: Any = None
        try:
            answer = [tuple(row.values()) for row in client.query(query).to_pylist()]
        except TraceplaneError as error:
            answer = error
        if answer == list(expected):
            return
        assert time.monotonic() < deadline, f"{query}\n{answer!r}\n{terminal.log()}"
        time.sleep(0.2)


@pytest.mark.timeout(900)
def test_the_examples_of_the_guides_do_what_the_pages_say(tmp_path: Path, files_example: str) -> None:
    folder, shop = tmp_path / "mine", tmp_path / "shop"
    folder.mkdir()
    shop.mkdir()
    (shop / "products.csv").write_text("product,price\ntea,3\ncoffee,4\n")
    data = tmp_path / "data"
    elsewhere = {
        "https://files.example": f"http://{files_example}",
        "/srv/shop": str(shop),
        "/data": str(data),
    }
    for page in (DATA_IN, DATES, RUNS, SCHEDULES, FILES, SECRETS, RIGHTS):
        write_files(folder, page, elsewhere)
    terminal = Terminal(
        folder,
        TRACEPLANE_OPERATOR_NETWORK_ALLOW=files_example,
        TRACEPLANE_FILE_SOURCE_ALLOW=str(data),
    )
    network, up, files, clock = blocks(DATA_IN, "bash")
    process = terminal.start(f"{up.strip().replace('/srv/shop', str(shop))} --no-spark")
    try:
        terminal.until("traceplane status")
        terminal.until("grep worker.ready up.log", '"supervised_network"')
        _data_comes_in(terminal, network, files, clock)
        _days_become_weeks_and_months(terminal)
        _jobs_run_for_each_event(terminal)
        _ticks_fire_and_are_made_up_for(terminal)
        _files_become_rows(terminal, data)
        _jobs_receive_secrets(terminal)
        _marks_follow_the_data(terminal)
        _people_have_roles(terminal)
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(180)
    assert code == 0, terminal.log()


def _data_comes_in(terminal: Terminal, network: str, files: str, clock: str) -> None:
    started = int(time.time() // 3600)
    for script in (network, files, clock):
        terminal.run(script)
    until_answered(
        terminal,
        "select day, sum(amount) from intake.orders group by day order by day",
        *((day, 10.0 * day + 1) for day in range(3)),
    )
    until_answered(
        terminal, "select product, price from stock.products order by price", ("tea", 3), ("coffee", 4)
    )
    until_answered(
        terminal, f"select min(hour) from clock.readings where hour >= {started - 1}", (started - 1,)
    )


def _files_become_rows(terminal: Terminal, data: Path) -> None:
    (data / "in").mkdir(parents=True)
    (data / "letters/2026/11").mkdir(parents=True)
    for name, rows in (("2026-11-16", "1,9.50\n"), ("2026-11-16_late", "2,\n"), ("2026-11-17", "3,1\n")):
        (data / f"in/orders_{name}.csv").write_text(f"id,amount\n{rows}")
    for number in range(2):
        (data / f"letters/2026/11/{number}.txt").write_text("first\nsecond\n")
    _, deploy = blocks(FILES, "bash")
    terminal.run(deploy)
    terminal.run("traceplane deploy letters.yaml")
    until_answered(terminal, "select id from shop.orders order by id", (1,), (2,), (3,))
    until_answered(terminal, "select count(*), count(distinct path) from letters.lines", (4, 2))
    said = terminal.run("traceplane files")
    assert "orders_{YYYY}-{MM}-{DD}*.csv  shop.orders, listed" in said
    assert "3 files match, 0 ignored" in said


def _jobs_receive_secrets(terminal: Terminal) -> None:
    set_, use, master = blocks(SECRETS, "bash")
    assert "partner_key is set, version 1" in terminal.run(set_)
    said = terminal.run(use)
    assert "used by prices/quotes" in said
    assert "s3cr3t" not in said
    quotes = "select host, signed from prices.quotes"
    until_answered(terminal, quotes, ("rpc.example", True))
    assert "2 secrets are sealed with now" in terminal.run(master)
    terminal.run("traceplane emit prices.minutes 1")
    until_answered(terminal, quotes, ("rpc.example", True), ("rpc.example", True))


def _people_have_roles(terminal: Terminal) -> None:
    person, service, role, leaves, teams = blocks(PEOPLE, "bash")
    member, token = terminal.run(person).split("\n")[:2]
    assert member == "ada@example.com: writer"
    cut = terminal.run(service).split("\n")[1]
    assert "finance until " in terminal.run(role)

    def as_whom(token: str) -> str:
        return terminal.run(f"TRACEPLANE_USER_TOKEN={token} traceplane whoami")

    assert as_whom(token).startswith("ada@example.com, a person of default, with the roles finance, writer")
    assert "only for datasets named shop.*" in as_whom(cut)
    assert ", disabled" in terminal.run(leaves)
    assert "token.revoked" in terminal.run(f"TRACEPLANE_USER_TOKEN={token} traceplane whoami 2>&1 || true")
    admin, further, worker = terminal.run(teams).split()
    for one in (admin, further):
        assert " of acme, with the roles admin" in as_whom(one)
    assert worker.startswith("tpw_")


def _marks_follow_the_data(terminal: Terminal) -> None:
    deploy, look = blocks(RIGHTS, "bash")
    said = terminal.run(deploy)
    assert "! dataset people.buyers: the column buyer is declassified: a keyed hash" in said
    until_answered(terminal, "select count(*) from people.buyers", (4,))
    shown = terminal.run(look)
    assert "Kiel" in shown
    assert "greeting" not in shown
    assert "mail.example" not in shown
    assert "declassified: a keyed hash" in shown
    assert "people.buyers  people@1" in shown
    assert "people.margins" not in shown
    refused = terminal.run(
        'TRACEPLANE_USER_TOKEN=$(cat rita.token) traceplane query "select * from people.margins" 2>&1 || true'
    )
    assert "query.unknown_relation" in refused


def _days_become_weeks_and_months(terminal: Terminal) -> None:
    emit, queries, tills, hours = blocks(DATES, "bash")
    assert "35 accepted" in terminal.run(emit)
    weeks = "select period, total from dates.weekly order by period"
    until_answered(terminal, weeks, *((f"2024-W0{n}", 70) for n in range(1, 6)))
    until_answered(terminal, "select period, total from dates.monthly", ("2024-01", 310))
    said = terminal.run(queries)
    assert "dates.monthly 2024-02: 2024-02 missing." in said
    assert "which lacks 2024-02-05..2024-02-29" in said
    assert "traceplane emit dates.days 2024-02-05..2024-02-29" in said
    terminal.run("traceplane emit dates.days 2024-01-31 --emission corrected")
    redone = "traceplane tasks --dag dates --job {} --state completed | wc -l"
    terminal.until(redone.format("weekly"), "6")
    terminal.until(redone.format("monthly"), "2")
    refused = terminal.run("traceplane emit dates.days 2024-02-30 2>&1 || true")
    assert "scope.bad_partition" in refused
    terminal.run("\n".join(tills.splitlines()[:2]))
    until_answered(terminal, "select month, total from tills.monthly", ("2024-01", 140))
    terminal.run("\n".join(hours.splitlines()[:3]))
    hourly = "select hour, transfers from blocks.hourly order by hour"
    until_answered(terminal, hourly, ("2026-11-16T00", 3), ("2026-11-16T01", 2))
    redone = "traceplane tasks --dag blocks --job hourly --state completed | wc -l"
    done = int(terminal.run(redone))
    terminal.run("traceplane emit blocks.heads 4 --emission reorganized")
    terminal.until(redone, str(done + 1))
    until_answered(terminal, hourly, ("2026-11-16T00", 3), ("2026-11-16T01", 2))


def _jobs_run_for_each_event(terminal: Terminal) -> None:
    readings, counters, books, names, pause, correction = blocks(RUNS, "bash")
    terminal.run(readings)
    until_answered(terminal, "select distinct day from readings.daily", ("2026-11-16",))
    deploy, emit, close = counters.splitlines()
    terminal.run(f"{deploy}\n{emit}")
    terminal.until("traceplane tasks --dag counters --job counts__batch --state completed | wc -l", "42")
    assert "counts__batch: closing 0-41 of counters.ticks" in terminal.run(close)
    until_answered(terminal, "select first, last from counters.counts", (0, 41))
    deploy, sales, refunds = books.splitlines()
    terminal.run(f"{deploy}\n{sales}")
    done = "traceplane tasks --dag books --job net --state completed | wc -l"
    terminal.until("traceplane explain books.net 1", "which lacks 1")
    terminal.run(refunds)
    until_answered(terminal, "select day, net from books.net", (1, 95))
    assert "0 accepted, 1 already accepted before" in terminal.run(sales)
    assert terminal.run(done).strip() == "1"
    terminal.run(correction)
    terminal.until(done, "2")
    until_answered(terminal, "select day, net from books.net", (1, 95))

    paused, resumed = pause.splitlines()
    assert "books/net: paused by" in terminal.run(paused)
    assert "(prices are wrong)" in terminal.run("traceplane status")
    assert "books/net is resumed" in terminal.run(resumed)

    terminal.run(names)
    named = "select day, name from names.named_sales order by day"
    until_answered(terminal, named, *((day, "Green tea") for day in (1, 2, 3)))
    done = "traceplane tasks --dag names --job named_sales --state completed | wc -l"
    again = int(terminal.run(done)) + 3
    terminal.run("traceplane emit names.loads 0 --emission 2024-02")
    terminal.until(f'test "$({done})" -ge {again} && echo all', "all")
    until_answered(terminal, named, *((day, "Green tea") for day in (1, 2, 3)))


def _ticks_fire_and_are_made_up_for(terminal: Terminal) -> None:
    deploy, fetch, emit, backfill, query = blocks(SCHEDULES, "bash")
    said = terminal.run(deploy)
    assert re.search(r"job days: next ticks (\d{4}-\d\d-\d\d 06:00, ){2}\S+ 06:00 \(Europe/Berlin\)", said)
    assert "reports/days: cron 0 6 * * * (Europe/Berlin), last tick none yet" in said
    assert terminal.run(emit).count("1 accepted") == 2
    terminal.run(backfill)
    days = "select count(*), min(day), max(day) from reports.orders where day < '2025'"
    until_answered(terminal, days, (60, "2024-01-01", "2024-02-29"))
    assert "2024-02-29" in terminal.run(query)
    terminal.run(fetch)
    rates = "select day, rate from rates.daily order by day"
    until_answered(terminal, rates, *((f"2024-02-{day}", 1.08) for day in range(26, 30)))
    # The same source, every minute: its next tick is at most a minute away, and names the current hour.
    text, _ = blocks(SCHEDULES, "yaml")
    often = text.replace("0 6 * * *", "* * * * *").replace("by: day", "by: hour").replace("reports", "often")
    (terminal.folder / "often.yaml").write_text(often.replace("period: previous", "period: this"))
    code = (terminal.folder / "code" / "reports.py").read_text()
    (terminal.folder / "code" / "often.py").write_text(code)
    terminal.run("traceplane deploy often.yaml")
    terminal.until("traceplane tasks --dag often --state completed | wc -l", "1")


def test_the_operators_of_the_page_on_tests_pass_their_tests(tmp_path: Path) -> None:
    write_files(tmp_path, TESTING, {})
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py"],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert "3 passed" in ran.stdout, ran.stdout + ran.stderr
