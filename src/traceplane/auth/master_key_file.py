"""The file of master keys, which seal signing keys and secrets at rest.

One key to a line, in hexadecimal digits. The first one seals; the others only open what they sealed before. A process
looks at the file again when it has changed, so keys are replaced while everything runs.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from traceplane.auth.keyring import MASTER_KEY_BYTES
from traceplane.errors import InvalidInput


class MasterKeyFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[tuple[int, int], tuple[bytes, ...]] | None = None

    def keys(self) -> tuple[bytes, ...]:
        """The current key first. A file is created on first use, readable by its owner only."""
        if not self._path.exists():
            _create(self._path)
        status = self._path.stat()
        seen = status.st_ino, status.st_mtime_ns
        if self._read is None or self._read[0] != seen:
            self._read = seen, _parsed(self._path)
        return self._read[1]

    def put_first(self, key: bytes) -> None:
        _write(self._path, (key, *(other for other in self.keys() if other != key)))

    def keep_first(self) -> None:
        """Forgets all keys but the current one."""
        _write(self._path, self.keys()[:1])


def new_key() -> bytes:
    return os.urandom(MASTER_KEY_BYTES)


def _parsed(path: Path) -> tuple[bytes, ...]:
    try:
        keys = tuple(bytes.fromhex(line) for line in path.read_text().split())
    except ValueError:
        keys = ()
    if not keys or any(len(key) != MASTER_KEY_BYTES for key in keys):
        raise InvalidInput(
            "keyring.master_key_length",
            f"each line of the master key file has {MASTER_KEY_BYTES} bytes in hexadecimal digits",
            value=str(path),
            next_step="restore the file from your backup: without it, sealed keys and secrets cannot be opened",
        )
    return keys


def _create(path: Path) -> None:
    """Writes a key under another name and links it into place: at any moment `path` is either absent or complete.

    The key is on disk before anything is sealed with it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.") as file:  # mode 0600
        file.write(new_key().hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was first; its key counts
            os.link(file.name, path)
    _sync_folder(path)


def _write(path: Path, keys: tuple[bytes, ...]) -> None:
    """Replaces the file in one step."""
    number, written = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    with open(number, "w") as file:
        file.write("".join(f"{key.hex()}\n" for key in keys))
        file.flush()
        os.fsync(file.fileno())
        owner = path.stat()
        with contextlib.suppress(PermissionError):
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
    os.replace(written, path)
    _sync_folder(path)


def _sync_folder(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
