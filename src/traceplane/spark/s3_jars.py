"""The jars with which Spark reads and writes S3: which they are, where they are, and how they get there.

They are not on PyPI, so `traceplane spark jars` fetches them from Maven Central with the `mvn` client, or takes them
from a folder. `s3_jars.txt` names each with its version and checksum. One more, with a class of the platform's own, is
made from its source (`credentials_jar`). Nothing else is loaded.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from traceplane.errors import InvalidInput, PlatformError
from traceplane.spark import credentials_jar
from traceplane.spark.command import spark_home

_LIST = Path(__file__).with_suffix(".txt")
_SECONDS = 900
_NO_DEPENDENCIES = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)


@dataclass(frozen=True, slots=True)
class Jar:
    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


def needed() -> list[Jar]:
    lines = (line.split() for line in _LIST.read_text().splitlines() if not line.startswith("#"))
    return [Jar(*line) for line in lines if line]


def hadoop_version() -> str:
    return next(jar.version for jar in needed() if jar.artifact == "hadoop-aws")


def _check_hadoop() -> None:
    """The jars call what is inside Spark's own Hadoop."""
    bundled = sorted((spark_home() / "jars").glob("hadoop-client-api-*.jar"))
    found = bundled[0].stem.removeprefix("hadoop-client-api-") if bundled else "none"
    if found != hadoop_version():
        raise InvalidInput(
            "spark.wrong_hadoop",
            f"the installed Spark has Hadoop {found}, and the jars for S3 are of {hadoop_version()}",
            value=str(spark_home()),
            next_step="install the version of pyspark that Traceplane names, or unset s3_task_role",
        )


def installed(folder: Path) -> tuple[Path, ...]:
    """The jars in a folder. Raises if one is missing or is another."""
    folder = folder.resolve()
    jars = needed()
    own = credentials_jar.path_in(folder)
    missing = [jar.name for jar in jars if not (folder / jar.name).is_file()]
    missing += [] if own.is_file() else [own.name]
    if missing:
        raise InvalidInput(
            "spark.jars_missing",
            f"Spark needs {len(jars) + 1} jars to read S3, and {len(missing)} of them are not in the folder,"
            f" {missing[0]} among them",
            value=str(folder),
            next_step="run `traceplane spark jars`, set spark_jars to a folder that has them, or unset s3_task_role",
        )
    _check_hadoop()
    for jar in jars:
        _check(jar, folder / jar.name)
    return (*(folder / jar.name for jar in jars), own)


def fetch(folder: Path) -> int:
    """Puts the missing jars into a folder, with `mvn`. Returns how many there were."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [jar for jar in needed() if not _is_there(jar, folder)]
    if missing:
        with TemporaryDirectory(dir=folder, prefix="fetching-") as draft:
            _run_maven(missing, Path(draft))
            _take(missing, Path(draft), folder)
    credentials_jar.make(folder)
    return len(missing)


def copy(source: Path, folder: Path) -> int:
    """The same, from a folder that somebody else filled."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [jar for jar in needed() if not _is_there(jar, folder)]
    _take(missing, source, folder)
    credentials_jar.make(folder)
    return len(missing)


def _take(jars: list[Jar], source: Path, folder: Path) -> None:
    for jar in jars:
        found = source / jar.name
        if not found.is_file():
            raise InvalidInput("spark.jars_missing", "a jar is not in the folder", value=str(found))
        _check(jar, found)
        draft = folder / f".{jar.name}.{os.getpid()}"
        shutil.copyfile(found, draft)
        draft.chmod(0o644)
        draft.replace(folder / jar.name)


def _is_there(jar: Jar, folder: Path) -> bool:
    path = folder / jar.name
    return path.is_file() and _sha256(path) == jar.sha256


def _check(jar: Jar, path: Path) -> None:
    if (actual := _sha256(path)) != jar.sha256:
        raise PlatformError(
            "spark.jar_altered",
            f"a jar has the SHA-256 {actual}, and {jar.sha256} is expected",
            value=str(path),
            next_step="delete it, and run `traceplane spark jars`",
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _run_maven(jars: list[Jar], folder: Path) -> None:
    if shutil.which("mvn") is None:
        raise InvalidInput(
            "spark.no_maven",
            "the jars come from Maven Central, and the program mvn is not installed",
            next_step="install Maven, or run `traceplane spark jars --from FOLDER` with a folder that has the jars",
        )
    dependencies = "".join(
        f"<dependency><groupId>{jar.group}</groupId><artifactId>{jar.artifact}</artifactId>"
        f"<version>{jar.version}</version>{_NO_DEPENDENCIES}</dependency>"
        for jar in jars
    )
    (folder / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>local</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    try:
        done = subprocess.run(
            command, check=False, cwd=folder, capture_output=True, text=True, timeout=_SECONDS
        )
        problem = (done.stdout + done.stderr).strip()[:500] if done.returncode else None
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem is not None:
        raise PlatformError(
            "spark.jars_not_fetched",
            f"mvn could not fetch the jars: {problem}",
            next_step="check the network and Maven's settings, or use --from FOLDER",
        )
