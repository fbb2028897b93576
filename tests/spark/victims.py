"""The files, processes and sockets that users' code in Spark must not reach, and how they were before."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from tests.spark.probes import WEAKEST, Probe
from traceplane.runtime.locked_folder import closed_folder

CODE = Path(__file__).resolve().parent
SECRET = "a_secret_that_must_not_leak"


@dataclass
class Victims:
    """Victims, all readable by everybody as far as their modes go, and what probes call them."""

    folder: Path
    names: dict[str, Any] = field(default_factory=dict)
    before: dict[Path, tuple[Any, ...]] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Path:
        return Path(self.names[name])

    def remember(self) -> None:
        self.before = {path: state_of(path) for path in self.victims()}

    def victims(self) -> list[Path]:
        return [
            *(self.key, self.tokens, self.tokens / "user", self.home, self.code, self.code_folder),
            *(Path("/usr/bin/env"), Path("/etc/shadow"), Path(sys.executable).resolve()),
            *([] if WEAKEST else [self.objects, self.granted, self.other]),
            *((self.granted / name for name in ("part.parquet", "first", "second")) if not WEAKEST else ()),
            *((self.other / "part.parquet",) if not WEAKEST else ()),
        ]

    def filled_in(self, probe: Probe) -> list[Any]:
        """A probe as an operator takes it."""
        arguments = [self._fill(argument) for argument in probe.arguments]
        return (
            [probe.name, self._fill(probe.act), arguments]
            if arguments
            else [probe.name, self._fill(probe.act)]
        )

    def _fill(self, text: Any) -> Any:
        if not isinstance(text, str):
            return text
        filled = re.sub(r"\{(\w+)\}", lambda match: str(self.names[match[1]]), text)
        return int(filled) if text in ("{api}", "{worker}", "{victim}") else filled


def state_of(path: Path) -> tuple[Any, ...]:
    found = path.lstat()
    content: Any = None
    with contextlib.suppress(PermissionError):
        content = sorted(os.listdir(path)) if path.is_dir() else path.read_bytes()
    if path.name == "tests" or path == CODE:
        content = None  # the interpreter caches what it compiles there
    return found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns if content is not None else 0, content


def _listener(family: socket.AddressFamily, address: Any) -> socket.socket:
    server = socket.socket(family)
    server.bind(address)
    server.listen()
    return server


@contextlib.contextmanager
def standing_victims() -> Iterator[Victims]:
    folder = Path("/var/tmp") / f"traceplane-test-spark-{os.getpid()}"
    home, objects, code = folder / "home", folder / "objects", folder / "code"
    for path in (folder, home, home / "tokens", code):
        path.mkdir(mode=0o755)
    closed_folder(home / "spark")
    closed_folder(objects)
    victims = Victims(folder)
    for name in ("granted", "other"):
        generation = objects / name / "generation"
        generation.mkdir(parents=True)
        parquet.write_table(pa.table({"n": [1], "whose": [name]}), generation / "part.parquet")
        (generation / "part.parquet").chmod(0o444)
        for file in ("first", "second"):
            (generation / file).write_text("committed")
        (generation / "kept").mkdir()
    for secret in (home / "master.key", home / "tokens" / "user"):
        secret.write_text(SECRET)
        secret.chmod(0o644)
    shutil.copy(CODE / "hostile_spark.py", code)
    victim = subprocess.Popen(["/bin/sleep", "1000"], env={"TOKEN": SECRET})
    api = _listener(socket.AF_INET, ("127.0.0.1", 0))
    unix = _listener(socket.AF_UNIX, str(folder / "postgres"))
    abstract = f"traceplane-test-{os.getpid()}"
    hidden = _listener(socket.AF_UNIX, "\0" + abstract)
    os.chmod(folder / "postgres", 0o777)
    victims.names = {
        "home": home,
        "key": home / "master.key",
        "tokens": home / "tokens",
        "spark": home / "spark",
        "objects": objects,
        "granted": objects / "granted" / "generation",
        "other": objects / "other" / "generation",
        "code_folder": code,
        "code": code / "hostile_spark.py",
        "worker": os.getpid(),
        "victim": victim.pid,
        "api": api.getsockname()[1],
        "unix": folder / "postgres",
        "abstract": abstract,
    }
    yield victims
    victim.kill()
    victim.wait()
    for server in (api, unix, hidden):
        server.close()
    shutil.rmtree(folder)
