"""The tutorial on signals, block by block, as a reader runs it: without a broker, and with Kafka."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs_pages import blocks, page
from tests.kafka import KafkaBroker, KafkaUnavailable
from tests.ports import free_port
from tests.terminal import Terminal
from traceplane.postgres.embedded.server import EmbeddedPostgres

TEXT = page("tutorials/signals.md")


@pytest.fixture(params=["files", "kafka"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KafkaBroker | None]:
    if request.param == "files":
        yield None
        return
    try:
        started = KafkaBroker.in_folder(tmp_path / "kafka")
        started.start()
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    yield started
    started.stop()


@pytest.fixture
def terminal(broker: KafkaBroker | None) -> Iterator[Terminal]:
    """In a folder that every user can enter, as that of a reader is."""
    with tempfile.TemporaryDirectory(prefix="docs-", ignore_cleanup_errors=True) as name:
        os.chmod(name, 0o755)
        folder = Path(name) / "market"
        (folder / "code").mkdir(parents=True)
        (export,) = blocks(TEXT, "sh")
        named = re.fullmatch(r"export (\w+)=localhost:9092\n", export)
        assert named is not None
        exported = {} if broker is None else {named[1]: broker.address}
        yield Terminal(folder, TRACEPLANE_TRIGGER_PORT=str(free_port()), **exported)
        if (folder / ".traceplane/postgres").exists():
            EmbeddedPostgres.ensure(folder / ".traceplane/postgres").destroy()


@pytest.mark.timeout(900)
def test_signals_launch_pipelines_as_the_tutorial_says(terminal: Terminal) -> None:
    (dag,), (code,) = blocks(TEXT, "yaml"), blocks(TEXT, "python")
    (terminal.folder / "market.yaml").write_text(dag)
    (terminal.folder / "code/market.py").write_text(code)
    up, begin, pipelines, first_hour, look, closed, look_closed, change, kill, doctor, begin_again, end = (
        blocks(TEXT, "bash")
    )
    platform = terminal.start(up.strip())
    try:
        terminal.until("traceplane status")
        terminal.run(begin)
        terminal.run(pipelines)

        terminal.run(first_hour)
        _until_launched(terminal, 2)
        said = terminal.run(look)
        assert re.search(r"20:53.* apple +buy +AAPL +10", said), said
        assert re.search(r"20:53.* microsoft +sell +MSFT +5", said), said
        assert "20:53" in TEXT

        terminal.run(closed)
        _until_launched(terminal, 3)
        said = terminal.run(look_closed)
        assert re.search(r"AAPL +golden_cross +113\b", said), said
        assert re.search(r"MSFT +death_cross +113\b", said), said
        assert len(re.findall(r" apple ", said)) == 1, said

        terminal.run(change)
        _until_launched(terminal, 5)

        terminal.run(kill)
        terminal.until(
            "traceplane query \"select 'there are ' || count(*) as n from market.bars\"", "there are 480"
        )
        terminal.until("traceplane status", "no unfinished tasks")
        said = terminal.run(f"{doctor.strip()} || true")
        assert "No trigger answers" in said
        assert "Signals are waiting" in said
        assert _completed(terminal) == 5

        terminal.run(begin_again)
        _until_launched(terminal, 7)
        said = terminal.run(end)
        assert said.count(" COMPLETED ") == 7, said
        assert len(re.findall(r" microsoft +sell", said)) == 4, said
        assert len(re.findall(r" apple +buy", said)) == 3, said
        assert "Seven trades in four hours" in TEXT
    finally:
        stop = re.search(r"`(kill \"[^`]+)`", TEXT)
        assert stop is not None
        with contextlib.suppress(AssertionError):  # a trigger that never began
            terminal.run(stop[1])
        platform.send_signal(signal.SIGINT)
        code_of_up = platform.wait(180)
    assert code_of_up == 0, terminal.log()


def _completed(terminal: Terminal) -> int:
    return terminal.run("traceplane execution list --status COMPLETED").count(" COMPLETED ")


def _until_launched(terminal: Terminal, executions: int) -> None:
    """So many executions are complete, and their rows can be queried."""
    ready = f'test "$(traceplane execution list --status COMPLETED | grep -c COMPLETED)" -ge {executions}'
    terminal.until(f"{ready} && traceplane status", f"market.trades: {executions} commit")
