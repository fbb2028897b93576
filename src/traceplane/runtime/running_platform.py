"""Whether the platform of a home folder runs, and the token of that folder, which nobody else is to get.

`up` and `traceplane gateway` keep files of the folder locked while they run, so the kernel says when they have ended,
however they did. A folder in which no `up` ever ran has no such record, and nothing is known of its platform.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from traceplane.errors import InvalidInput, PlatformError
from traceplane.linux.listeners import Address, listening_users
from traceplane.settings import Settings, running_file, signed_in_file, user_token


@dataclass(frozen=True, slots=True)
class Running:
    """A `traceplane up`."""

    pid: int
    url: str


def running_here(settings: Settings) -> Running | None:
    """The `up` of this folder, if one is running."""
    try:
        with running_file(settings).open() as file:
            if lock(file, patience=0.0):
                return None
            return Running(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None


def opened_without_links(path: Path) -> IO[str]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    file = os.fdopen(descriptor, "a+")
    try:
        os.fchmod(descriptor, 0o600)  # whoever can open it can lock it
    except OSError:
        file.close()
        raise
    return file


def lock(file: IO[str], *, patience: float = 0.3) -> bool:
    """`running_here` holds the lock for a moment, which is no reason to refuse."""
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        else:
            return True


@contextlib.contextmanager
def noted_gateway(settings: Settings) -> Iterator[None]:
    """Held by each gateway while it runs, if it has the folder: without `up`, nothing else says that one does."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            file = held.enter_context(opened_without_links(_gateway_file(settings)))
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


def _gateway_file(settings: Settings) -> Path:
    return settings.home / "gateway_running"


def _gateway_runs(settings: Settings) -> bool:
    try:
        with _gateway_file(settings).open() as file:
            return not lock(file, patience=0.0)
    except OSError:
        return False


def token_for_calls(settings: Settings, *, url_chosen: bool = False) -> str:
    """The user token; that of the folder only for the folder's own platform, if its address is not chosen by name."""
    token = user_token(settings, url_chosen=url_chosen)
    is_of_the_folder = settings.user_token is None and not signed_in_file(settings).exists()
    if is_of_the_folder and not url_chosen and settings.gateway_url is None:
        _check_who_listens(settings)
    return token


def _check_who_listens(settings: Settings) -> None:
    """After `up` has ended, or while its gateway is restarted, anybody may listen at its address."""
    try:
        owner = running_file(settings).stat().st_uid
    except OSError:
        return  # no `up` ever ran here: processes were started one by one, maybe by other users
    if running_here(settings) is None and not _gateway_runs(settings):
        raise PlatformError(
            "service.unreachable",
            "the platform of this folder has ended, so the folder's token is not sent to its address",
            value=settings.gateway_address,
            next_step=where_it_runs(settings),
        )
    parts = urlsplit(settings.gateway_address)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    strangers = {user for at in _addresses(parts.hostname or "") for user in listening_users(at, port)}
    if strangers - {0, owner}:
        raise InvalidInput(
            "cli.token_withheld",
            f"a process of another user of this machine listens at the address of the platform in"
            f" {settings.home.absolute()}, so it does not get the user token of that folder",
            value=settings.gateway_address,
            next_step="find out whose it is, and let the platform use another gateway_port; if you trust it, set"
            " TRACEPLANE_GATEWAY_URL to its address",
        )


def _addresses(host: str) -> list[Address]:
    """Where a connection to it may go, on this machine."""
    try:
        address = ip_address(host)
    except ValueError:
        return [ip_address("127.0.0.1"), ip_address("::1")] if host == "localhost" else []
    if address.is_unspecified:
        return [ip_address("127.0.0.1" if address.version == 4 else "::1")]
    return [address]


def where_it_runs(settings: Settings) -> str:
    """The next step where the platform of the folder was not reached."""
    home, here = settings.home.resolve(), running_here(settings)
    if here is None:
        return (
            f"no platform is running in {home}: start it with `traceplane up`, on free ports,"
            " or go to the folder of the running one"
        )
    if here.url != settings.gateway_address:
        return f"the platform of {home} is at {here.url}: set TRACEPLANE_GATEWAY_URL={here.url}"
    return f"the platform of {home} runs as process {here.pid}: check its output, and try again"
