"""Secrets as files of a mounted volume: `FOLDER/ORGANIZATION/{platform|user}/NAME`.

Kubernetes mounts a Secret as such a folder and replaces all its files in one step: they are links through `..data`,
which is a link to the folder with the present values. So the files of one folder are read through the place that
`..data` names at one moment, and again if that is removed meanwhile. A task never gets some values from before a
change and some from after it.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path

from traceplane.adapters.secret_store import (
    LONGEST_VALUE,
    NAMESPACES,
    Reading,
    StoredSecret,
    Writing,
    is_place,
    read_only,
    unreadable,
)
from traceplane.errors import Conflict, InvalidInput, PlatformError
from traceplane.linux.plain_files import open_plain
from traceplane.postgres.database import Database, Transaction
from traceplane.postgres.secrets import SecretPlace

_PRESENT = "..data"
_TRIES = 10


class FileSecretStore:
    """Whoever mounts the volume sets the values; this only reads them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def check(self) -> None:
        if not self._folder.is_dir() or not os.access(self._folder, os.R_OK | os.X_OK):
            raise InvalidInput(
                "settings.invalid",
                "secret_folder must be a folder that this process can read",
                value=str(self._folder),
                next_step="mount the volume there, or set secret_folder to where it is",
            )

    async def close(self) -> None:
        pass

    async def put(self, tx: Transaction, place: SecretPlace, value: str, by: str) -> Writing:
        raise self._read_only(place, "set")

    async def remove(self, place: SecretPlace) -> bool:
        raise self._read_only(place, "removed")

    def _read_only(self, place: SecretPlace, verb: str) -> Conflict:
        return read_only(
            place,
            f"secrets are files of a mounted volume here, so they cannot be {verb} through Traceplane",
            f"change {self._file(place)} where the volume comes from, such as the Kubernetes Secret",
        )

    async def listed(self, database: Database, org: str) -> list[StoredSecret]:
        return await asyncio.to_thread(self._listed, org)

    def _listed(self, org: str) -> list[StoredSecret]:
        found = []
        for namespace in NAMESPACES:
            try:
                names = sorted(os.listdir(self._folder / org / namespace))
            except (FileNotFoundError, NotADirectoryError):
                continue
            for name in names:
                place = SecretPlace(org, namespace, name)
                if is_place(place) and (changed := self._changed_at(place)) is not None:
                    found.append(StoredSecret(place, set_at=changed))
        return found

    def _changed_at(self, place: SecretPlace) -> datetime | None:
        try:
            status = self._file(place).stat()
        except OSError:
            return None
        return datetime.fromtimestamp(status.st_mtime, UTC) if stat.S_ISREG(status.st_mode) else None

    async def existing(self, database: Database, places: Collection[SecretPlace]) -> set[SecretPlace]:
        return await asyncio.to_thread(
            lambda: {place for place in places if self._changed_at(place) is not None}
        )

    async def look_up(self, tx: Transaction, places: Collection[SecretPlace]) -> Reading:
        async def read() -> Mapping[SecretPlace, str | PlatformError]:
            return await asyncio.to_thread(self.values, places)

        return read

    def _file(self, place: SecretPlace) -> Path:
        return self._folder / place.org / place.namespace / place.name

    def values(self, places: Collection[SecretPlace]) -> dict[SecretPlace, str | PlatformError]:
        """As of one moment for each folder."""
        by_folder: defaultdict[Path, list[SecretPlace]] = defaultdict(list)
        for place in places:
            by_folder[self._file(place).parent].append(place)
        values: dict[SecretPlace, str | PlatformError] = {}
        for folder, wanted in by_folder.items():
            values |= _of_one_moment(folder, wanted)
        return values


def _of_one_moment(folder: Path, places: list[SecretPlace]) -> dict[SecretPlace, str | PlatformError]:
    for _ in range(_TRIES):
        version = _present(folder)
        values: dict[SecretPlace, str | PlatformError] = {}
        for place in places:
            try:
                values[place] = _value(version / place.name)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                values[place] = unreadable(place, _reason(error))
        if _present(folder) == version:
            return values
    return {place: unreadable(place, "its file changes all the time") for place in places}


def _present(folder: Path) -> Path:
    """Where the files are now; a folder that nothing replaces as a whole is its own."""
    try:
        return folder / os.readlink(folder / _PRESENT)
    except OSError:
        return folder


def _value(path: Path) -> str:
    with open_plain(path.resolve(strict=True)) as file:
        raw = file.read(LONGEST_VALUE + 2)
    text = raw.decode().removesuffix("\n").removesuffix("\r")
    if not 0 < len(text.encode()) <= LONGEST_VALUE:
        raise ValueError("its file is empty" if not text else "its file is too long")
    return text


def _reason(error: OSError | ValueError) -> str:
    match error:
        case UnicodeDecodeError():
            return "its file is not text in UTF-8"
        case OSError():
            return error.strerror or "its file cannot be opened"
        case _:
            return str(error)
