"""The local profile: embedded Postgres, migrations, and tokens in files under the home folder."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

from traceplane import telemetry
from traceplane.auth.opaque import Principal
from traceplane.auth.roles import Role
from traceplane.client.local_platform import lock, running_here
from traceplane.errors import Conflict, InvalidInput, TraceplaneError
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.runtime.locked_folder import check_owner, closed_folder, own_folder
from traceplane.settings import Settings, running_file, token_file, with_tokens

_POLL_SECONDS = 0.5
_TOKENS = {"worker": (Principal.WORKER, None), "user": (Principal.USER, Role.ADMIN)}


def start_postgres(
    settings: Settings, *, die_with_parent: bool = False
) -> tuple[Settings, EmbeddedPostgres | None]:
    """The settings with a database URL; starts the embedded server if none is set."""
    close_home(settings)
    if settings.state_url is not None:
        return settings, None
    server = EmbeddedPostgres.ensure(settings.home / "postgres", die_with_parent=die_with_parent)
    return replace(settings, state_url=server.state_url), server


def existing_postgres(settings: Settings) -> Settings:
    """The same for commands that need an existing platform: they do not create one."""
    if settings.state_url is None and not (settings.home / "postgres").is_dir():
        raise InvalidInput(
            "cli.no_platform",
            "no platform was set up in this folder",
            value=settings.home.absolute(),
            next_step="go to the folder where `traceplane up` runs, run `traceplane migrate` here,"
            " or set state_url",
        )
    return start_postgres(settings)[0]


@contextlib.contextmanager
def the_only_one(settings: Settings) -> Iterator[None]:
    """Held by `up` while it runs: a second one in the same folder is refused before it changes anything."""
    close_home(settings)
    with _opened_without_links(running_file(settings)) as file:
        if not lock(file):
            other = running_here(settings)
            raise Conflict(
                "up.already_running",
                "`traceplane up` is already running in this folder"
                + (f", as process {other.pid}" if other else ""),
                value=settings.home.resolve(),
                next_step=f"use it{f' at {other.url}' if other else ''}, stop it with Ctrl-C where it runs,"
                " or choose another folder with --home and other ports",
            )
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "url": settings.gateway_address}))
        file.flush()
        yield


def _opened_without_links(path: Path) -> IO[str]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _unusable(path, error) from error
    return os.fdopen(descriptor, "a+")


async def keep_postgres(server: EmbeddedPostgres, settings: Settings) -> None:
    """Restarts the embedded server whenever it dies."""
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        if server.pid is not None:
            continue
        telemetry.emit("up.postgres_died", "error", log=str(server.log))
        try:
            await asyncio.to_thread(start_postgres, replace(settings, state_url=None))
        except TraceplaneError as error:
            telemetry.emit("up.postgres_not_started", "error", code=error.code, message=str(error))


def close_home(settings: Settings) -> None:
    """Makes the home folder unreadable for other users of this machine, and refuses what they have put there."""
    home = settings.home
    try:
        own_folder(home)
        if not os.access(home, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        for path in home.iterdir():
            check_owner(path)
        for name in ("tokens", "postgres"):
            if (home / name).exists():
                own_folder(home / name)
        # With root, Postgres and operators run as other users, which must pass.
        home.chmod(0o711 if os.geteuid() == 0 else 0o700)
        if settings.object_store is None:
            closed_folder(settings.object_store_root)
    except OSError as error:
        raise _unusable(home, error) from error


def _unusable(path: Path, error: OSError) -> InvalidInput:
    return InvalidInput(
        "home.unusable",
        f"the folder of the platform cannot be created or written: {error.strerror}",
        value=path.absolute(),
        next_step="choose another one with --home or TRACEPLANE_HOME",
    )


async def prepare(settings: Settings) -> Settings:
    """Migrates, and creates the tokens of the local processes and the command line."""
    # Imported here: most commands do not need the database driver and cryptography.
    from traceplane.auth.store import issue_token
    from traceplane.postgres.database import Database
    from traceplane.postgres.migrate import migrate

    assert settings.state_url is not None
    await migrate(settings.state_url)
    database = await Database.connect(settings.state_url, connections=2)
    try:
        for name, (principal, role) in _TOKENS.items():
            path = token_file(settings, name)
            if not path.exists():
                async with database.transaction() as tx:
                    token = await issue_token(
                        tx, principal, org=settings.own_org, name=f"local-{name}", role=role
                    )
                write_private(path, token)
    finally:
        await database.close()
    return with_tokens(settings)


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner can read, atomically."""
    own_folder(path.parent)
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # a new file, mode 0600
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")
    Path(draft).replace(path)
