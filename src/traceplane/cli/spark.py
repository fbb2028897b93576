"""`traceplane spark`: what Spark needs beside its package."""

from __future__ import annotations

from pathlib import Path

import click

from traceplane.cli.grammar import Noun
from traceplane.cli.output import as_json, say, say_json
from traceplane.settings import Settings
from traceplane.spark import s3_jars


@click.group(cls=Noun)
def spark() -> None:
    """What Spark needs beside its package."""


@spark.command()
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder that has the jars, instead of Maven Central.",
)
@as_json
@click.pass_obj
def jars(settings: Settings, source: Path | None, as_json: bool) -> None:
    """Fetch the jars with which Spark's executors read and write S3."""
    folder = settings.spark_jars_folder
    count = s3_jars.fetch(folder) if source is None else s3_jars.copy(source, folder)
    if as_json:
        say_json({"fetched": count, "jars": sorted(str(jar) for jar in s3_jars.installed(folder))})
        return
    say(f"{count} jars fetched; {len(s3_jars.installed(folder))} in {folder}")
