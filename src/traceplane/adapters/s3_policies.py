"""Session policies: what temporary credentials of S3 may do, as short as S3 wants them.

A task may read exactly its files if that fits into a policy, or else the folders of the attempts that wrote them, of
their tasks, or of their generations. It may write below the prefix of its own attempt, and nowhere else.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Sequence
from typing import Any

LONGEST = 2048
"""Characters that STS accepts."""


def reading(bucket: str, folders: Sequence[str]) -> str | None:
    """All files in some folders, by their keys; None if there are too many."""
    return _fitting([_allow("s3:GetObject", [_arn(bucket, f"{folder}/*") for folder in folders])])


def working(bucket: str, files: Sequence[str], prefixes: Sequence[str], *, write_once: bool) -> str | None:
    """Reads these files, and reads and writes below these prefixes; None if even the generations are too many.

    `write_once` lets nothing be overwritten. Only AWS knows that condition; other servers would refuse every write.
    """
    own = [f"{prefix}*" for prefix in prefixes]
    writing = [_allow("s3:PutObject", [_arn(bucket, key) for key in own])] if own else []
    if write_once and writing:
        writing[0]["Condition"] = {"Null": {"s3:if-none-match": "false"}}
    folders = sorted({_generation(key) for key in (*files, *prefixes)})
    # Hadoop looks whether a file is a folder before it opens it. Others' folders stay unlisted.
    below = {"StringLike": {"s3:prefix": [f"{folder}/*" for folder in folders]}}
    listing = _allow("s3:ListBucket", [f"arn:aws:s3:::{bucket}"]) | {"Condition": below}
    for readable in (*_narrowest_first(files), None):
        if readable is None:
            return None
        keys = [_arn(bucket, key) for key in sorted({*readable, *own})]
        if (policy := _fitting([_allow("s3:GetObject", keys), listing, *writing])) is not None:
            return policy
    return None


def _narrowest_first(files: Sequence[str]) -> Iterable[list[str]]:
    yield list(files)
    folders = {posixpath.dirname(file) for file in files}
    yield [f"{folder}/*" for folder in folders]
    yield [f"{folder}/*" for folder in {posixpath.dirname(folder) for folder in folders}]
    yield [f"{folder}/*" for folder in {_generation(file) for file in files}]


def _generation(key: str) -> str:
    """The folder of the generation that a key belongs to."""
    return key.partition("/staging/")[0]


def _arn(bucket: str, key: str) -> str:
    return f"arn:aws:s3:::{bucket}/{key}"


def _allow(action: str, resources: list[str]) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resources}


def _fitting(statements: list[dict[str, Any]]) -> str | None:
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))
    return policy if len(policy) <= LONGEST else None
