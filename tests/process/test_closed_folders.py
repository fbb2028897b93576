"""Other users of the machine, against the folders of a platform that works."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from tests.platform import Platform
from traceplane.adapters import signal_source_folder
from traceplane.adapters.signal_source import NOTHING, DeadLetter
from traceplane.adapters.signal_source_folder import FolderSignalSource
from traceplane.cli.profile import close_home
from traceplane.linux import operator_ids
from traceplane.runtime.locked_folder import closed_folder
from traceplane.settings import load

OTHER_UID = 60_710

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")

READ_ALL = """
import os, sys
os.setgroups([]); os.setresgid({uid}, {uid}, {uid}); os.setresuid({uid}, {uid}, {uid})
for folder, folders, files in os.walk(sys.argv[1], onerror=None):
    for name in files:
        try:
            with open(os.path.join(folder, name), "rb") as file:
                file.read(1)
            print(os.path.join(folder, name))
        except OSError:
            pass
for path in sys.argv[2:]:
    try:
        open(path, "rb").close()
        print(path)
    except OSError:
        pass
"""


def readable_by_others(home: Path, *paths: Path) -> list[str]:
    """What another user can open, by looking everywhere and by knowing the paths."""
    code = READ_ALL.format(uid=OTHER_UID)
    command = [sys.executable, "-I", "-S", "-c", code, str(home), *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


async def test_other_users_of_the_machine_can_read_nothing_of_the_platform(
    database_url: str, tmp_path: Path
) -> None:
    """F9: data, code and Spark's files were readable by everybody."""
    home = tmp_path / "home"
    home.mkdir()
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)  # the way there is open; what is closed is the platform's
    async with Platform.start(database_url, home) as platform:
        await platform.deploy(DAG)
        await platform.emit("closed.in", [1, 2, 3])
        await platform.settled()
    files = [path for path in (home / "objects").rglob("*") if path.is_file()]
    assert files
    close_home(load(environment={}, home=home))
    assert readable_by_others(home / "objects", *files) == []


class FromTheBeginning:
    """Offsets of a group that has read nothing."""

    def stored(self, partitions: Collection[int]) -> Mapping[int, int]:
        return {}

    def begin(self, offsets: Mapping[int, int]) -> Mapping[int, int]:
        return offsets

    def settle(self) -> None:
        pass


@pytest.mark.parametrize("earlier", [False, True], ids=["new", "left open by an earlier version"])
def test_other_users_of_the_machine_can_neither_read_signals_nor_lock_them(
    tmp_path: Path, earlier: bool
) -> None:
    """A lock on a file that is open for reading stops publishers and triggers alike."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    signals = tmp_path / "signals"
    if earlier:
        (signals / "prices").mkdir(parents=True)
        for name in ("0.jsonl", "0.group.lock", "dead-letter.jsonl"):
            (signals / "prices" / name).touch(0o644)
        for folder in (signals, signals / "prices"):
            folder.chmod(0o755)
    signal_source_folder.publish(signals, "prices", [b"{}"])
    source = FolderSignalSource(signals, "prices", "group", "earliest", FromTheBeginning())
    while (polled := source.poll(1, 1.0, 10)) is NOTHING:
        pass
    source.bury([DeadLetter(polled.payloads[0], 0, 0, "code", "reason")])
    files = sorted(path for path in signals.rglob("*") if path.is_file())
    assert [path.name for path in files] == ["0.group.lock", "0.jsonl", "dead-letter.jsonl"]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (signals, signals / "prices")} == {0o700}
    assert readable_by_others(signals, *files) == []
    source.close()


def test_only_operators_can_traverse_a_closed_folder(tmp_path: Path) -> None:
    folder = closed_folder(tmp_path / "closed")
    found = folder.stat()
    assert (found.st_mode & 0o777, found.st_uid, found.st_gid) == (0o710, 0, operator_ids.GROUP)


DAG = """
version: 1
dag: closed
jobs:
- name: in
  activation: source
  source: { kind: manual }
  outputs: [{ dataset: closed.in }]
- name: out
  runtime: python
  operator: python
  inputs: [{ from: { job: in } }]
  outputs: [{ name: rows, dataset: closed.out }]
  config: { entrypoint: "basic:copy" }
"""
