"""Values of secrets in Postgres, sealed: the store that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from uuid import UUID

from traceplane.adapters.secret_store import Reading, StoredSecret, Writing
from traceplane.errors import PlatformError
from traceplane.postgres import secrets
from traceplane.postgres.database import Database, Transaction
from traceplane.postgres.secrets import SealedVersion, SecretPlace
from traceplane.secrets.sealing import MasterKeys, Sealed

_SEALED_AT_ONCE = 500


class SealedStore:
    def __init__(self, master_keys: Callable[[], Sequence[bytes]]) -> None:
        """The first key seals, and all of them open; they are asked for at each use, since they may be replaced."""
        self._master_keys = master_keys

    @property
    def _keys(self) -> MasterKeys:
        return MasterKeys(self._master_keys())

    async def check(self) -> None:
        assert self._keys.current

    async def close(self) -> None:
        pass

    async def put(self, tx: Transaction, place: SecretPlace, value: str, by: str) -> Writing:
        await secrets.begin_sealing(tx)
        secret_id, version = await secrets.next_version(tx, place)
        sealed = self._keys.seal(value.encode(), _place(secret_id, version))
        stored = SealedVersion(secret_id, version, sealed.value, sealed.key, sealed.master_key_id)
        await secrets.store_version(tx, stored, by)

        async def stored_before() -> int:
            return version

        return stored_before

    async def remove(self, place: SecretPlace) -> bool:
        return False

    async def listed(self, database: Database, org: str) -> list[StoredSecret]:
        async with database.transaction() as tx:
            versions = await secrets.listed(tx, org)
        return [
            StoredSecret(SecretPlace(org, v.namespace, v.name), v.version, v.set_by, v.set_at)
            for v in versions
        ]

    async def existing(self, database: Database, places: Collection[SecretPlace]) -> set[SecretPlace]:
        async with database.transaction() as tx:
            return set(await secrets.newest(tx, places))

    async def look_up(self, tx: Transaction, places: Collection[SecretPlace]) -> Reading:
        versions, keys = await secrets.newest(tx, places), self._keys

        async def read() -> Mapping[SecretPlace, str | PlatformError]:
            return {place: _opened(keys, version) for place, version in versions.items()}

        return read

    async def is_sealed_with_current(self, tx: Transaction) -> bool:
        """Whether no other key is needed, until the end of the transaction: nobody seals meanwhile."""
        await secrets.await_sealing(tx)
        return not await secrets.is_sealed_with_others(tx, self._keys.current)

    async def seal_anew(self, tx: Transaction) -> int:
        """Seals keys with the current master key that another one sealed; the number of those, 0 if none is left."""
        keys = self._keys
        others = await secrets.sealed_with_others(tx, keys.current, _SEALED_AT_ONCE)
        anew = [
            SealedVersion(
                v.secret_id,
                v.version,
                b"",
                keys.seal_anew(
                    Sealed(b"", v.sealed_key, v.master_key_id), _place(v.secret_id, v.version)
                ).key,
                keys.current,
            )
            for v in others
        ]
        if anew:
            await secrets.seal_anew(tx, anew, keys.current)
        return len(anew)


def _opened(keys: MasterKeys, version: SealedVersion) -> str | PlatformError:
    sealed = Sealed(version.sealed_value, version.sealed_key, version.master_key_id)
    try:
        return keys.open(sealed, _place(version.secret_id, version.version)).decode()
    except PlatformError as error:  # must not keep other jobs from theirs
        return error


def _place(secret_id: UUID, version: int) -> str:
    return f"secret {secret_id} {version}"
