"""Secrets in Postgres: set, listed, handed out, and sealed anew."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from traceplane.errors import InvalidInput, PlatformError
from traceplane.postgres import secrets
from traceplane.postgres.database import Transaction
from traceplane.postgres.secrets import ListedSecret, SealedVersion
from traceplane.secrets.references import SecretName
from traceplane.secrets.sealing import MasterKeys, Sealed

LONGEST_VALUE = 64 << 10
_SEALED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class JobNeeds:
    """The secrets that a job refers to."""

    org: str
    dag: str
    job: str
    names: frozenset[SecretName]


@dataclass(frozen=True, slots=True)
class Denied:
    name: SecretName
    why: str


class Vault:
    def __init__(self, master_keys: MasterKeys) -> None:
        self._keys = master_keys

    async def set(
        self,
        tx: Transaction,
        org: str,
        name: SecretName,
        value: str,
        *,
        by: str,
        allowed_jobs: Sequence[str] | None = None,
        allow_anew: bool = True,
    ) -> int:
        """The version that it became."""
        raw = value.encode()
        if not 0 < len(raw) <= LONGEST_VALUE:
            raise InvalidInput(
                "secret.bad_value",
                f"a secret has 1 to {LONGEST_VALUE} bytes",
                value=f"{len(raw)} bytes",
                next_step="check what was sent; a file may be a better place for it",
            )
        secret_id, version = await secrets.add_version(
            tx, org, name.namespace, name.name, allowed_jobs, allow_anew=allow_anew
        )
        sealed = self._keys.seal(raw, _place(secret_id, version))
        stored = SealedVersion(secret_id, version, sealed.value, sealed.key, sealed.master_key_id)
        await secrets.store_version(tx, stored, by)
        return version

    async def listed(self, tx: Transaction, org: str) -> list[ListedSecret]:
        return await secrets.listed(tx, org)

    async def remove(self, tx: Transaction, org: str, name: SecretName) -> bool:
        return await secrets.remove(tx, org, name.namespace, name.name)

    async def hand_out(
        self, tx: Transaction, needs: Collection[JobNeeds]
    ) -> dict[JobNeeds, Mapping[SecretName, str] | Denied]:
        """What each job may have now; `Denied`: something that it refers to is missing, not allowed or damaged."""
        wanted = [(need, name) for need in needs for name in sorted(need.names)]
        found = await secrets.newest(tx, [(need.org, n.namespace, n.name) for need, n in wanted])
        handed: dict[JobNeeds, dict[SecretName, str]] = {need: {} for need in needs}
        denied: dict[JobNeeds, Denied] = {}
        for (need, name), version in zip(wanted, found, strict=True):
            if version is None:
                denied.setdefault(need, Denied(name, "there is no such secret"))
            elif not is_allowed(version.allowed_jobs, need.dag, need.job):
                denied.setdefault(need, Denied(name, "the job is not among those that may use it"))
            else:
                try:
                    handed[need][name] = self._open(version)
                except PlatformError as error:  # must not keep other jobs from theirs
                    denied.setdefault(need, Denied(name, error.message))
        await secrets.note_use(tx, [version.secret_id for version in found if version is not None])
        return {**handed, **denied}

    def _open(self, version: SealedVersion) -> str:
        sealed = Sealed(version.sealed_value, version.sealed_key, version.master_key_id)
        return self._keys.open(sealed, _place(version.secret_id, version.version)).decode()

    async def seal_anew(self, tx: Transaction) -> int:
        """Seals keys with the current master key that another one sealed; the number of those, 0 if none is left."""
        others = await secrets.sealed_with_others(tx, self._keys.current, _SEALED_AT_ONCE)
        anew = [
            SealedVersion(
                v.secret_id,
                v.version,
                b"",
                self._keys.seal_anew(
                    Sealed(b"", v.sealed_key, v.master_key_id), _place(v.secret_id, v.version)
                ).key,
                self._keys.current,
            )
            for v in others
        ]
        if anew:
            await secrets.seal_anew(tx, anew, self._keys.current)
        return len(anew)


def is_allowed(allowed_jobs: Sequence[str] | None, dag: str, job: str) -> bool:
    return allowed_jobs is None or f"{dag}/{job}" in allowed_jobs or f"{dag}/*" in allowed_jobs


def _place(secret_id: UUID, version: int) -> str:
    return f"secret {secret_id} {version}"
