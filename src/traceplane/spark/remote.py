"""A Spark Connect server that somebody else runs (`spark_remote`): whether a worker may use it, found out at its start.

An address on another machine needs TLS and a token: whoever reaches a Spark server runs any code on it, and data and
credentials pass. Then the server is asked what it is, in a process of its own, which imports pyspark and ends.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote, urlsplit

from traceplane.errors import InvalidInput, PlatformError
from traceplane.spark import s3_jars

_SECONDS = 180.0
_EXAMPLE = "for example sc://spark.internal:15002/;use_ssl=true;token=TOKEN"


@dataclass(frozen=True, slots=True)
class RemoteAddress:
    """`url` is as pyspark reads it."""

    url: str
    authorities: str | None = None
    """Certificates in PEM that the server is trusted by; None: those of the system."""

    @property
    def shown(self) -> str:
        """Without the token."""
        return f"sc://{urlsplit(self.url).netloc}"


def checked(url: str, authorities: Path | None = None) -> RemoteAddress:
    """Raises unless it is an address that a worker may use."""
    address = RemoteAddress(url, None if authorities is None else _read(authorities))
    parts = urlsplit(url)
    path, *parameters = parts.path.split(";")
    named = dict(parameter.partition("=")[::2] for parameter in parameters)
    try:
        is_valid = parts.scheme == "sc" and bool(parts.hostname) and path in ("", "/") and parts.port != 0
    except ValueError:  # of the port
        is_valid = False
    if not is_valid or "@" in parts.netloc or not all(named.values()):
        raise InvalidInput(
            "spark.remote_invalid",
            "spark_remote is not an address of a Spark Connect server",
            value=address.shown,
            next_step=_EXAMPLE,
        )
    lacks = [
        what
        for what, is_there in (
            ("TLS", unquote(named.get("use_ssl", "")).lower() == "true"),
            ("a token", "token" in named),
        )
        if not is_there
    ]
    if lacks and not _is_here(parts.hostname or ""):
        raise InvalidInput(
            "spark.remote_unprotected",
            f"spark_remote is on another machine, and has no {' and no '.join(w.removeprefix('a ') for w in lacks)}:"
            " whoever reaches that server runs any code on it",
            value=address.shown,
            next_step=_EXAMPLE,
        )
    return address


def _read(authorities: Path) -> str:
    try:
        return authorities.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            "spark.remote_invalid",
            f"the certificates of spark_remote_ca cannot be read: {error}",
            value=str(authorities),
            next_step="name a file with certificates in PEM, or unset spark_remote_ca",
        ) from error


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def check_server(address: RemoteAddress, *, uses_bucket: bool, renews: bool) -> None:
    """Asks the server whether it is one that tasks can use."""
    asked = {
        "remote": address.url,
        "authorities": address.authorities,
        "classes": [
            *(["org.apache.hadoop.fs.s3a.S3AFileSystem"] if uses_bucket else []),
            *(["traceplane.RenewedCredentials"] if renews else []),
        ],
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "traceplane.dataplane.remote_check"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    told: dict[str, str | None]
    try:
        async with asyncio.timeout(_SECONDS):
            out, _ = await process.communicate(json.dumps(asked).encode())
        told = json.loads(out.splitlines()[-1]) if out else {"problem": "it was not told"}
    except TimeoutError:
        told = {"problem": f"no answer within {_SECONDS:g} seconds"}
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    judge(address, told, uses_bucket=uses_bucket)


def judge(address: RemoteAddress, told: dict[str, str | None], *, uses_bucket: bool) -> None:
    ours = version("pyspark")
    if (problem := told.get("problem")) is not None:
        raise PlatformError(
            "spark.remote_unreachable",
            f"the server of spark_remote cannot be used: {problem[:300]}",
            value=address.shown,
            next_step="check that it runs, its address, certificate and token",
        )
    if told["spark"] != ours:
        raise InvalidInput(
            "spark.remote_version",
            f"the server of spark_remote is Spark {told['spark']}, and this worker's library is {ours}",
            value=address.shown,
            next_step=f"start the server with Spark {ours}",
        )
    if not uses_bucket:
        return
    hadoop = s3_jars.hadoop_version()
    if told["hadoop"] != hadoop:
        raise InvalidInput(
            "spark.wrong_hadoop",
            f"the server of spark_remote has Hadoop {told['hadoop']}, and the jars for S3 are of {hadoop}",
            value=address.shown,
            next_step=f"start the server with Hadoop {hadoop}, or unset s3_task_role",
        )
    if told["missing"] is not None:
        raise InvalidInput(
            "spark.remote_lacks_jars",
            f"the server of spark_remote has no class {told['missing']}",
            value=address.shown,
            next_step="start it with the jars of `traceplane spark jars` (spark.jars), or unset s3_task_role",
        )
    if told["cache"] != "true":
        raise InvalidInput(
            "spark.remote_shares_credentials",
            "the server of spark_remote keeps file systems of S3, and would hand one task's credentials to others",
            value=address.shown,
            next_step="start it with spark.hadoop.fs.s3a.impl.disable.cache=true",
        )
