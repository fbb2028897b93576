"""Messages between a worker and the launcher of its Spark server (`launcher`)."""

from __future__ import annotations

import msgspec

TEMP_MARK = "@TEMP@"
"""Placeholder for the server's temporary folder in its command and environment; it depends on the confinement."""
PORT_MARK = "@PORT@"
"""Placeholder for the server's port: the launcher picks one in the network that it is in."""


def filled_in(text: str, *, temp: str, port: int) -> str:
    return text.replace(TEMP_MARK, temp).replace(PORT_MARK, str(port))


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """May carry descriptors of the server's network namespace."""

    command: list[str]
    environment: dict[str, str]
    folder: str
    """The launcher's own folder; the server cannot write to it."""
    temp: str
    readable: list[str]
    stores: list[str]
    """Where granted folders are; readable and writable as a whole if the server has no mounts of its own."""
    environments: list[str] = []
    """The same for folders that are only read."""
    uid: int | None
    disabled: list[str]
    allow_weak: bool


class Grant(msgspec.Struct, frozen=True, tag=True):
    """Shown to the server until revoked: folders to read, and folders in them to write."""

    readable: list[str]
    writable: list[str]


class Revoke(msgspec.Struct, frozen=True, tag=True):
    grant: Grant
    sealed: bool
    """The written files must not change any more."""


SparkRequest = Grant | Revoke


class Confined(msgspec.Struct, frozen=True, tag=True):
    """The server is being started, by this process and with these layers."""

    pid: int
    layers: list[str]
    missing: dict[str, str]


class TooWeak(msgspec.Struct, frozen=True, tag=True):
    reason: str


class Listening(msgspec.Struct, frozen=True, tag=True):
    """The server, and no other process, listens on this port."""

    port: int


class Answered(msgspec.Struct, frozen=True, tag=True):
    """Answers to the requests, in their order."""

    problem: str | None = None
    quiet: bool = True
    """Whether the sealed files can no longer be changed."""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The server has ended, with everything that it started; a negative code is a signal."""

    code: int


SparkReport = Confined | TooWeak | Listening | Answered | Ended
