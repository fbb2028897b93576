"""The platform's own class for Spark's Java: credentials for S3 that the worker renews while a task runs.

It is compiled where it is used, by Janino, the compiler that Spark has in its package for its own generated code. So
neither a compiled file nor a Java development kit is needed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from traceplane.dataplane.java import find_java
from traceplane.errors import PlatformError
from traceplane.spark.command import spark_home

CLASS = "traceplane.RenewedCredentials"
_SOURCE = Path(__file__).with_name("RenewedCredentials.java")
_COMPILER = "org.codehaus.commons.compiler.samples.CompilerDemo"
_SECONDS = 300


def path_in(folder: Path) -> Path:
    """Another source has another name, so a jar is never that of another version."""
    return folder / f"traceplane-s3-{hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]}.jar"


def make(folder: Path) -> bool:
    """Puts it into the folder that has the other jars. Returns whether it was missing."""
    jar = path_in(folder)
    if jar.is_file():
        return False
    with TemporaryDirectory(dir=folder, prefix="compiling-") as name:
        classes = Path(name) / "classes"
        classes.mkdir()
        _compile(classes, folder)
        draft = Path(name) / jar.name
        with zipfile.ZipFile(draft, "w") as archive:
            for file in sorted(classes.rglob("*.class")):
                archive.write(file, file.relative_to(classes))
        draft.chmod(0o644)
        draft.replace(jar)
    return True


def _compile(target: Path, folder: Path) -> None:
    spark = spark_home() / "jars"
    compiler = [*spark.glob("janino-*.jar"), *spark.glob("commons-compiler-*.jar")]
    known = [*spark.glob("hadoop-client-*.jar"), *folder.glob("*.jar")]
    command = [
        *(str(find_java().executable), "-XX:TieredStopAtLevel=1", "-cp", os.pathsep.join(map(str, compiler))),
        *(_COMPILER, "-d", str(target), "-classpath", os.pathsep.join(map(str, known)), str(_SOURCE)),
    ]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_SECONDS)
        problem = (done.stdout + done.stderr).strip()[:500]
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if not any(target.rglob("*.class")):
        raise PlatformError(
            "spark.class_not_compiled",
            f"the class that renews credentials could not be compiled: {problem}",
            value=str(_SOURCE),
            next_step="check that the folder can be written, and that it has all jars; fetch them again",
        )
