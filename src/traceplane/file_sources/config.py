"""A file source as deployed: the config of the job that stands for it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from traceplane.operators.spec import Config

DEFAULT_EVERY_SECONDS = 30.0
DEFAULT_SETTLE_SECONDS = 10.0
"""Of files in a folder; an object in S3 is there as a whole or not at all."""


class Format(StrEnum):
    CSV = "csv"
    JSON_LINES = "json_lines"
    PARQUET = "parquet"


# fmt: off
class FilesConfig(Config, frozen=True, kw_only=True):
    path: Annotated[str, Meta(
        description="The folder, or the prefix in S3, that is listed.")]
    pattern: Annotated[str, Meta(
        description="The names of files below it, and the partition that each belongs to.")]
    every_seconds: Annotated[float, Meta(
        description="How long after a listing the next one begins.")] = DEFAULT_EVERY_SECONDS
    settle_seconds: Annotated[float, Meta(
        description="How long the files of a partition must be unchanged before it is announced.")] = 0.0
# fmt: on
