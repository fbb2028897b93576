"""The local profile: embedded Postgres, migrations, and tokens in files under the home folder."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from traceplane.auth.opaque import Principal, Role
from traceplane.postgres.embedded import EmbeddedPostgres
from traceplane.settings import Settings

_TOKENS = {"worker": (Principal.WORKER, None), "user": (Principal.USER, Role.ADMIN)}


def start_postgres(
    settings: Settings, *, die_with_parent: bool = False
) -> tuple[Settings, EmbeddedPostgres | None]:
    """Settings with database URLs; starts the embedded server if none are given."""
    if settings.state_url is not None:
        return settings, None
    server = EmbeddedPostgres.ensure(settings.home / "postgres", die_with_parent=die_with_parent)
    return replace(settings, state_url=server.state_url, data_url=server.data_url), server


async def prepare(settings: Settings) -> Settings:
    """Migrates, and makes the tokens that the local processes and the command line use."""
    # With the driver and cryptography, which most commands do without.
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
                        tx, principal, org=settings.org, name=f"local-{name}", role=role
                    )
                write_private(path, token)
    finally:
        await database.close()
    return with_tokens(settings)


def with_tokens(settings: Settings) -> Settings:
    """Settings with the tokens of the home folder, where none are given."""
    return replace(
        settings,
        worker_token=settings.worker_token or _read(token_file(settings, "worker")),
        user_token=settings.user_token or _read(token_file(settings, "user")),
    )


def token_file(settings: Settings, name: str) -> Path:
    return settings.home / "tokens" / name


def write_private(path: Path, text: str) -> None:
    """A file that only its owner can read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")
    draft.replace(path)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return None
