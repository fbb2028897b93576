"""Where a server lives, whom root runs it as, and the files that belong to it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pwd
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from traceplane.postgres.embedded.problems import problem
from traceplane.postgres.embedded.processes import ServerUser, run_as
from traceplane.runtime.locked_folder import check_owner

Role = Literal["postgres", "traceplane_state"]
ROLES: tuple[Role, ...] = ("postgres", "traceplane_state")


def server_user(folder: Path) -> ServerUser | None:
    """None unless we are root; then the owner of the data that is there, or `nobody`."""
    if os.geteuid() != 0:
        return None
    data = (_recorded_location(folder) or folder) / "data"
    if data.exists() and data.stat().st_uid != 0:
        return ServerUser(data.stat().st_uid, data.stat().st_gid)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        return ServerUser(65534, 65534)
    return ServerUser(nobody.pw_uid, nobody.pw_gid)


def _recorded_location(folder: Path) -> Path | None:
    pointer = folder / "location"
    return Path(pointer.read_text().strip()) if pointer.exists() else None


def location_of(folder: Path, user: ServerUser | None, fallback_root: Path) -> Path:
    recorded = _recorded_location(folder)
    if recorded is not None:
        return recorded
    if user is None or _may_enter(user, folder):
        return folder
    if (folder / "data").exists():
        raise problem("folder_unreachable", folder)
    location = fallback_root / f"postgres-{digest(folder)}"
    make_public_folder(fallback_root)
    make_public_folder(location)
    write(folder / "location", f"{location}\n", 0o600)
    return location


def _may_enter(user: ServerUser, folder: Path) -> bool:
    return run_as(user, ["/bin/sh", "-c", 'test -x "$1"', "sh", str(folder)]).returncode == 0


def passwords_in(folder: Path, *, create: bool) -> dict[str, str]:
    path = folder / "passwords.json"
    if not path.exists():
        if not create:
            raise problem("passwords_missing", path)
        write(path, json.dumps({role: secrets.token_urlsafe(24) for role in ROLES}), 0o600)
    passwords: dict[str, str] = json.loads(path.read_text())
    return passwords


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def make_folder(folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o711)
        folder.chmod(0o711)  # past the umask: root's server has to pass through
    except FileExistsError:
        if not folder.is_dir():
            raise
        check_owner(folder)


def make_public_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)


def make_private_folder(folder: Path, user: ServerUser | None) -> None:
    """Make or adopt a folder of the server's user; one of somebody else's is refused, not taken over."""
    uid = user.uid if user else os.geteuid()
    try:
        folder.mkdir(mode=0o700)
        if user is not None:
            os.chown(folder, user.uid, user.gid)
    except FileExistsError:
        existing = folder.lstat()
        if not stat.S_ISDIR(existing.st_mode) or existing.st_uid != uid:
            raise problem("socket_conflict", folder) from None
        folder.chmod(0o700)


def write(path: Path, text: str, mode: int) -> None:
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)  # of a process that was killed
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, mode)
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    draft.replace(path)


def digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
