"""The folders and S3 prefixes that file sources may list."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable

S3 = "s3://"
_IN_S3 = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^?#]*)?")


def problem(place: str) -> str | None:
    """Why it is not a place, whatever is allowed."""
    if place.startswith(S3):
        if not _IN_S3.fullmatch(place) or not _is_tidy(place.removeprefix(S3)):
            return "a place in S3 is s3://, a bucket and a prefix"
    elif not place.startswith("/") or not _is_tidy(place.removeprefix("/")) or not place.isprintable():
        return "a folder is given by its absolute path, without . and .."
    return None


def _is_tidy(path: str) -> bool:
    return path == "" or (
        posixpath.normpath(path) == path.removesuffix("/") and not path.startswith(("/", ".."))
    )


def is_allowed(place: str, allowed: Iterable[str]) -> bool:
    """Whether a place is one of those that are allowed, or lies below one. Only texts are compared."""
    return any(f"{place.rstrip('/')}/".startswith(f"{one.rstrip('/')}/") for one in allowed)


def bucket_and_prefix(place: str) -> tuple[str, str] | None:
    """Of a place in S3; None: it is a folder."""
    if not place.startswith(S3):
        return None
    bucket, _, prefix = place.removeprefix(S3).partition("/")
    return bucket, prefix.strip("/")
