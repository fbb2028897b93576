"""`traceplane up` leaves nothing behind, however it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.platform import until
from tests.ports import free_port
from traceplane.cli.supervisor import Service, supervise

SUPERVISE = """
import asyncio, sys, threading, time
from traceplane.cli.supervisor import Service, supervise
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()  # the kernel tells of each thread's end
started = lambda name, pid: print(pid, flush=True)
asyncio.run(supervise([Service("gateway", ("gateway",), {environment!r})], asyncio.Event(), started=started))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")
async def test_a_killed_supervisor_takes_its_processes_with_it(database_url: str, tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "TRACEPLANE_HOME": str(tmp_path),
        "TRACEPLANE_STATE_URL": database_url,
        "TRACEPLANE_GATEWAY_PORT": str(free_port()),
    }
    code = SUPERVISE.format(environment=environment)
    log = tmp_path / "log"
    with log.open("wb") as output:
        owner = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=output
        )
    assert owner.stdout is not None
    child = int(await owner.stdout.readline())

    async def started() -> bool:
        return "process.started" in log.read_text()

    await until(started, what="the gateway has started")
    owner.send_signal(signal.SIGKILL)
    await owner.wait()

    async def gone() -> bool:
        state = Path(f"/proc/{child}/stat")
        return not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z"

    await until(gone, what="the gateway has ended")
    assert "process.stopped" in log.read_text(), "it was told to stop, and had its time for that"
    assert "process.killed" not in log.read_text()


async def test_services_import_nothing_from_the_folder_in_which_they_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starting the platform in someone else's folder runs none of that folder's code outside a sandbox."""
    metadata = tmp_path / "planted-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[traceplane.operators]\nplanted = planted:SPEC\n")
    ran = tmp_path / "ran"
    planted = f"open({str(ran)!r}, 'w').close()\n"
    (tmp_path / "planted.py").write_text(planted)
    (tmp_path / "click.py").write_text(planted)
    monkeypatch.chdir(tmp_path)
    stop, log = asyncio.Event(), tmp_path / "log"
    with log.open("wb") as output:
        environment = {"PATH": os.environ["PATH"], "TRACEPLANE_HOME": str(tmp_path / "home")}
        service = Service("operators", ("operators",), environment, output.fileno())
        supervising = asyncio.create_task(supervise([service], stop))

        async def listed() -> bool:
            return "splitter" in log.read_text() or ran.exists()

        await until(listed, what="the operators are listed")
        stop.set()
        await supervising
    assert not ran.exists()
    assert "planted" not in log.read_text()


async def test_only_a_death_that_nobody_expected_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed on purpose is started again without alarm; the next one that ends is not."""
    stop, pids, deaths = asyncio.Event(), list[int](), list[str]()

    def told(event: str, level: str = "info", /, **_: object) -> None:
        if event == "up.process_died":
            deaths.append(level)
            if len(deaths) == 2:
                stop.set()

    monkeypatch.setattr("traceplane.cli.supervisor.telemetry.emit", told)
    environment = {"PATH": os.environ["PATH"], "TRACEPLANE_HOME": str(tmp_path)}
    with (tmp_path / "log").open("wb") as output:
        service = Service("operators", ("operators",), environment, output.fileno())
        await supervise(
            [service], stop, started=lambda _, pid: pids.append(pid), expected=lambda pid: pid == pids[0]
        )
    assert deaths == ["info", "error"]
