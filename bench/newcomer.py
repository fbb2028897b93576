"""A newcomer's path, timed: from `git clone` to rows that Spark derived, the same once more when all is set up, and
what the platform takes while it has nothing to do.

    python -m bench.newcomer        these rows alone

The newcomer has an empty HOME, no Java and no display. Packages are in the caches of uv, pip and pnpm: a first round,
which is not timed, fills them. What is cloned is what is committed here.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import results
from tests.ports import free_port
from traceplane.postgres.embedded.server import EmbeddedPostgres

ROOT = Path(__file__).parents[1]
LIMITS = {
    ("newcomer: clone to first rows", "s"): 180.0,
    ("newcomer: first rows, set up before", "s"): 60.0,
    ("idle platform: memory", "MB"): 1500.0,
    ("idle platform: CPU", "% of a core"): 5.0,
}
PATIENCE = 900.0
"""Seconds for each step; whoever measures on a slow machine gets a figure all the same."""
IDLE_SECONDS = 60.0
SETTLE_SECONDS = 15.0
PREPARING = "traceplane.spark.classes"
"""In the command of what the first start of Spark leaves running for a minute, at the lowest priority."""

Progress = Callable[[str], None]


def run(progress: Progress) -> list[results.Row]:
    figures: list[float] = []
    why = ""
    with tempfile.TemporaryDirectory(prefix="bench-newcomer-", ignore_cleanup_errors=True) as name:
        os.chmod(name, 0o711)  # the sandbox and Postgres run as other users when this one is root
        try:
            for figure in _measured(Path(name), progress):
                figures.append(figure)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            why = f"newcomer: {error}"
            progress(why)
    missing = [None] * (len(LIMITS) - len(figures))
    return [
        results.compare(
            suite="ui", name=name, unit=unit, better="lower", ours=ours, peer="target", theirs=limit, bar=1.0,
            note=why if ours is None else "",
        )
        for ((name, unit), limit), ours in zip(LIMITS.items(), [*figures, *missing], strict=True)
    ]  # fmt: skip


def _measured(folder: Path, progress: Progress) -> Iterator[float]:
    """The figures in the order of LIMITS; those that were measured before something failed are kept."""
    newcomer = Newcomer(folder)
    newcomer.sets_up()
    progress("newcomer: the package caches are filled")
    shutil.rmtree(newcomer.clone)

    began = time.monotonic()
    newcomer.sets_up()
    progress(f"newcomer: cloned and set up after {time.monotonic() - began:.0f} s")
    with newcomer.first_rows("first"):
        took = time.monotonic() - began
    progress(f"newcomer: first rows after {took:.0f} s")
    yield took

    began = time.monotonic()
    with newcomer.first_rows("second") as platform:
        took = time.monotonic() - began
        progress(f"newcomer: once set up, first rows after {took:.0f} s")
        yield took
        platform.until_prepared()
        time.sleep(SETTLE_SECONDS)
        before = platform.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        share = 100 * (platform.cpu_seconds() - before) / IDLE_SECONDS
        memory = platform.memory_mb()
        told = ", ".join(f"{command} {size:.0f}" for command, size in memory[:5])
        total = sum(size for _, size in memory)
        progress(
            f"idle platform: {share:.1f} % of a core; {len(memory)} processes, {total:.0f} MB: {told}, …"
        )
        yield total
        yield share


class Newcomer:
    """A HOME with nothing in it, and what somebody does there first."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clone, home = folder, folder / "traceplane", folder / "home"
        home.mkdir()
        foreign = ("TRACEPLANE_", "JAVA", "PYTHON", "SPARK_", "VIRTUAL_ENV", "MAKE", "MFLAGS")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        for name in ("DISPLAY", "WAYLAND_DISPLAY"):
            kept.pop(name, None)
        self.environment = {
            # The caches are found by these. Traceplane keeps nothing there.
            "XDG_CACHE_HOME": str(Path.home() / ".cache"),
            "XDG_DATA_HOME": str(Path.home() / ".local/share"),
            **kept,
            "HOME": str(home),
            "PATH": f"{self.clone / '.venv/bin'}{os.pathsep}{_path_without_java(folder / 'bin')}",
            "TRACEPLANE_DISPATCHER_PORT": str(free_port()),
            "TRACEPLANE_GATEWAY_PORT": str(free_port()),
        }

    def sets_up(self) -> None:
        self._run("git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(self.clone), cwd=self.folder)
        python = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
        said = self._run("make", "setup", f"PYTHON={python}", cwd=self.clone)
        if not (self.clone / "src/traceplane/gateway/ui/index.html").is_file():
            raise RuntimeError(
                f"`make setup` built no web UI, so its time says little: {said.strip()[-300:]}"
            )

    @contextlib.contextmanager
    def first_rows(self, project: str) -> Iterator[Platform]:
        """A new project and its platform, which runs until the end of the block: what the README of a project says,
        up to rows of the job that runs on Spark."""
        folder = self.folder / project
        self._run("traceplane", "init", project, cwd=self.folder)
        log = self.folder / f"{project}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["traceplane", "dev"], cwd=folder, env=self.environment, stdout=output, stderr=output
            )
        platform = Platform(process, log, folder / ".traceplane/postgres")
        try:
            platform.until_said(rf"Deployed {project} version 1, which serves")
            self._run("traceplane", "emit", f"{project}.days", "2026-11-01..2026-11-03", cwd=folder)
            platform.until_said(rf"{project}\.volumes: \d+ commit")
            rows = self._run("traceplane", "query", f"select * from {project}.volumes", cwd=folder)
            if "BTC-USD" not in rows:
                raise RuntimeError(f"the first query had no rows: {rows}")
            yield platform
        finally:
            platform.stop()

    def _run(self, *command: str, cwd: Path) -> str:
        done = subprocess.run(
            command,
            check=False,
            cwd=cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        if done.returncode != 0:
            raise RuntimeError(f"`{' '.join(command)}` failed: {(done.stdout + done.stderr).strip()[-300:]}")
        return done.stdout


@dataclass(frozen=True)
class Platform:
    """A `traceplane dev` with all its processes, and the Postgres that it started in a session of its own."""

    process: subprocess.Popen[bytes]
    log: Path
    postgres: Path

    def until_said(self, pattern: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not re.search(pattern, said := self.log.read_text(errors="replace")):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"`traceplane dev` did not say {pattern!r}: {said[-300:]}")
            time.sleep(0.1)

    def until_prepared(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while any(PREPARING in _command(pid) for pid in self._pids()) and time.monotonic() < deadline:
            time.sleep(1)

    def cpu_seconds(self) -> float:
        """Of all processes, and of those of their children that have ended."""
        ticks = sum(sum(map(int, fields[11:15])) for pid in self._pids() if (fields := _stat(pid)))
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> list[tuple[str, float]]:
        """By process, the largest first. What processes share counts once."""
        sizes = [(_command(pid)[-60:], _memory_kb(pid) * 1024 / 1e6) for pid in self._pids()]
        return sorted(sizes, key=lambda one: -one[1])

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(180)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.postgres.exists():
            EmbeddedPostgres.ensure(self.postgres).destroy()

    def _pids(self) -> list[int]:
        parents = {
            int(entry.name): int(fields[1])
            for entry in Path("/proc").glob("[0-9]*")
            if (fields := _stat(int(entry.name)))
        }
        postmaster = int((self.postgres / "data/postmaster.pid").read_text().split()[0])
        pids = [self.process.pid, postmaster]
        for pid in pids:  # grows while it is read: children of children
            pids += [child for child, parent in parents.items() if parent == pid]
        return pids


def _stat(pid: int) -> list[str]:
    """What /proc says behind the name of a process; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""


def _memory_kb(pid: int) -> int:
    """The proportional set size. Of a protected process, only root may read it: then the resident size, which is more,
    since shared pages count in full."""
    for file, field in (("smaps_rollup", "Pss"), ("status", "VmRSS")):
        try:
            text = Path(f"/proc/{pid}/{file}").read_text()
        except OSError:
            continue
        if size := re.search(rf"^{field}: +(\d+) kB", text, re.M):
            return int(size[1])
    return 0


def _path_without_java(folder: Path) -> Path:
    """One folder with links to all commands of the PATH but Java's, and but those of the environment that measures."""
    folder.mkdir()
    for directory in map(Path, os.environ["PATH"].split(os.pathsep)):
        if not directory.is_dir() or directory == Path(sys.prefix) / "bin":
            continue
        for command in directory.iterdir():
            link = folder / command.name
            if not command.name.startswith("java") and not link.is_symlink():
                link.symlink_to(command)
    return folder


if __name__ == "__main__":
    print(results.table(run(lambda line: print(line, flush=True))))
