"""What travels between a worker and the launcher of its Spark server (`launcher`)."""

from __future__ import annotations

import msgspec

TEMP_MARK = "@TEMP@"
"""Stands for the server's temporary folder in its command and environment: its name depends on the confinement."""
PORT_MARK = "@PORT@"
"""Stands for the port that the server is to listen on: the launcher finds one in the network that it is in."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """May carry descriptors: of the network namespace that the server is to be in."""

    command: list[str]
    environment: dict[str, str]
    folder: str
    """The launcher's own: nothing in it can be written by the server."""
    temp: str
    readable: list[str]
    stores: list[str]
    """Where grants lie; readable and writable as a whole where there are no mounts of the server's own."""
    uid: int | None
    disabled: list[str]
    allow_weak: bool


class Grant(msgspec.Struct, frozen=True, tag=True):
    """Shown to the server until the same is revoked: folders to read, and folders in them to write."""

    readable: list[str]
    writable: list[str]


class Revoke(msgspec.Struct, frozen=True, tag=True):
    grant: Grant
    sealed: bool
    """What was written is to stay as it is."""


SparkRequest = Grant | Revoke


class Confined(msgspec.Struct, frozen=True, tag=True):
    """The server is being started, by this process and with these layers."""

    pid: int
    layers: list[str]
    missing: dict[str, str]


class TooWeak(msgspec.Struct, frozen=True, tag=True):
    reason: str


class Listening(msgspec.Struct, frozen=True, tag=True):
    """The server listens on that port, it and nobody else."""

    port: int


class Answered(msgspec.Struct, frozen=True, tag=True):
    """To the requests, in their order."""

    problem: str | None = None
    quiet: bool = True
    """Whether nobody can change any more what was sealed."""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The server has ended, and with it all that it started; a negative code is a signal's."""

    code: int


SparkReport = Confined | TooWeak | Listening | Answered | Ended
