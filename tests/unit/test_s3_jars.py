"""Only jars with the recorded checksums are loaded."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from traceplane.errors import InvalidInput, PlatformError
from traceplane.spark import credentials_jar, s3_jars
from traceplane.spark.s3_jars import Jar


@pytest.fixture
def one_jar(monkeypatch: pytest.MonkeyPatch) -> Jar:
    """The one that there is beside the platform's own, which takes all the real ones to be compiled."""
    jar = Jar("group", "hadoop-aws", s3_jars.hadoop_version(), hashlib.sha256(b"content").hexdigest())
    monkeypatch.setattr(s3_jars, "needed", lambda: [jar])
    monkeypatch.setattr(
        credentials_jar, "make", lambda folder: credentials_jar.path_in(folder).write_bytes(b"")
    )
    return jar


def test_the_list_names_each_jar_with_version_and_checksum() -> None:
    jars = s3_jars.needed()
    assert len({jar.name for jar in jars}) == len(jars) > 30
    assert all(len(jar.sha256) == 64 and jar.version[0].isdigit() for jar in jars)


def test_a_missing_jar_is_named_with_what_to_do(one_jar: Jar, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"spark.jars_missing.*hadoop-aws-.*\.jar.*traceplane spark jars"):
        s3_jars.installed(tmp_path)


def test_a_jar_with_another_content_is_neither_loaded_nor_copied(one_jar: Jar, tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "folder"
    source.mkdir()
    (source / one_jar.name).write_bytes(b"other")
    with pytest.raises(PlatformError, match=r"spark\.jar_altered"):
        s3_jars.copy(source, folder)
    credentials_jar.path_in(source).write_bytes(b"")
    with pytest.raises(PlatformError, match=r"spark\.jar_altered"):
        s3_jars.installed(source)
    (source / one_jar.name).write_bytes(b"content")
    assert s3_jars.copy(source, folder) == 1
    assert s3_jars.installed(folder)[0] == (folder / one_jar.name).resolve()
    assert s3_jars.copy(source, folder) == 0


def test_a_spark_with_another_hadoop_is_refused(
    one_jar: Jar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(one_jar, version="3.4.1")
    monkeypatch.setattr(s3_jars, "needed", lambda: [other])
    for name in (other.name, credentials_jar.path_in(tmp_path).name):
        (tmp_path / name).write_bytes(b"content")
    with pytest.raises(InvalidInput, match=r"spark\.wrong_hadoop.*3\.4\.1.*pyspark"):
        s3_jars.installed(tmp_path)


def test_without_maven_the_other_way_is_named(
    one_jar: Jar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidInput, match=r"spark\.no_maven.*--from"):
        s3_jars.fetch(tmp_path)
