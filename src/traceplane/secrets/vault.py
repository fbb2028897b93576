"""Secrets: set, listed, removed, and handed out to the jobs that may have them.

Who may use a secret, and when it was last used, is in Postgres. The value is in the store that the settings name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from traceplane.adapters.secret_store import LONGEST_VALUE, Reading, SecretStore, Writing
from traceplane.adapters.secret_stores import outside_store
from traceplane.errors import InvalidInput, PlatformError
from traceplane.postgres import secrets
from traceplane.postgres.database import Database, Transaction
from traceplane.postgres.secrets import NO_RIGHTS_SET, SecretPlace, SecretRights, UsedSecret
from traceplane.secrets.references import SecretName, parse_name
from traceplane.secrets.sealed_store import SealedStore
from traceplane.settings import Settings


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

    def __str__(self) -> str:
        return f"the secret {self.name} cannot be used: {self.why}"


@dataclass(frozen=True, slots=True)
class ListedSecret:
    name: SecretName
    rights: SecretRights
    last_used_at: datetime | None
    version: int | str | None
    set_by: str | None
    set_at: datetime | None


Jobs = tuple[Sequence[str] | None]
"""Those that may use a secret, in a tuple; a tuple with None: every job."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is left to do after the transaction: no other service is waited for while rows are locked.

    Until it is completed, only jobs that may use both the value from before and the new one are handed either. If that
    never comes, setting the secret again completes it.
    """

    place: SecretPlace
    write: Writing
    jobs: Jobs | None
    """Who may use the new value, as far as others may not use the old one."""

    async def complete(self, database: Database) -> int | str | None:
        """The version that the value became."""
        version = await self.write()
        if self.jobs is not None:
            async with database.transaction() as tx:
                await secrets.grant(tx, self.place, jobs=self.jobs)
        return version


Handed = Mapping[JobNeeds, Mapping[SecretName, str] | Denied]


@dataclass(frozen=True, slots=True)
class Lookup:
    """What was found within a transaction; the values are read after it."""

    needs: Collection[JobNeeds]
    rights: Mapping[SecretPlace, SecretRights]
    read: Reading

    async def values(self) -> Handed:
        """What each job may have now; `Denied`: something that it refers to is missing, not allowed or damaged."""
        values = await self.read()
        return {need: self._of_job(need, values) for need in self.needs}

    def _of_job(
        self, need: JobNeeds, values: Mapping[SecretPlace, str | PlatformError]
    ) -> Mapping[SecretName, str] | Denied:
        handed: dict[SecretName, str] = {}
        for name in sorted(need.names):
            place = place_of(need.org, name)
            value = values.get(place)
            if value is None:
                return Denied(name, "there is no such secret")
            if not is_allowed(self.rights.get(place, NO_RIGHTS_SET), need.dag, need.job):
                return Denied(name, f"{need.dag}/{need.job} is not among those that may use it")
            if isinstance(value, PlatformError):
                return Denied(name, value.message)
            handed[name] = value
        return handed


class Vault:
    def __init__(self, store: SecretStore) -> None:
        self._store = store
        self._is_outside = not isinstance(store, SealedStore)

    @classmethod
    def of(cls, settings: Settings, master_keys: Callable[[], Sequence[bytes]]) -> Vault:
        return cls(outside_store(settings) or SealedStore(master_keys))

    async def check(self) -> None:
        """Raises if the store cannot be used."""
        await self._store.check()

    async def close(self) -> None:
        await self._store.close()

    # What people do ----------------------------------------------------------------------------------

    async def set(
        self,
        tx: Transaction,
        org: str,
        name: SecretName,
        value: str,
        *,
        by: str,
        jobs: Jobs | None = None,
        roles: Sequence[str] | None = None,
    ) -> Setting:
        """`jobs` and `roles`: who may use and set it, if that is to change."""
        size = len(value.encode())
        if not 0 < size <= LONGEST_VALUE:
            raise InvalidInput(
                "secret.bad_value",
                f"a secret has 1 to {LONGEST_VALUE} bytes",
                value=f"{size} bytes",
                next_step="check what was sent; a file may be a better place for it",
            )
        place = place_of(org, name)
        meanwhile = jobs
        if self._is_outside and jobs is not None:
            before = (await secrets.rights(tx, [place])).get(place, NO_RIGHTS_SET)
            meanwhile = (allowed_by_both(before.allowed_jobs, jobs[0]),)
        await secrets.grant(tx, place, jobs=meanwhile, roles=roles)
        write = await self._store.put(tx, place, value, by)
        return Setting(place, write, jobs if meanwhile != jobs else None)

    async def allow(
        self,
        tx: Transaction,
        org: str,
        name: SecretName,
        *,
        jobs: Jobs | None = None,
        roles: Sequence[str] | None = None,
    ) -> SecretRights:
        """The rights as they are then, of a secret that exists."""
        place = place_of(org, name)
        await secrets.grant(tx, place, jobs=jobs, roles=roles)
        return (await secrets.rights(tx, [place]))[place]

    async def existing(
        self, database: Database, org: str, names: Collection[SecretName]
    ) -> frozenset[SecretName]:
        places = {place_of(org, name): name for name in names}
        existing = await self._store.existing(database, places) if places else ()
        return frozenset(places[place] for place in existing)

    async def rights(
        self, tx: Transaction, org: str, names: Collection[SecretName]
    ) -> dict[SecretName, SecretRights]:
        """Of all these, whether they exist or not."""
        places = {place_of(org, name): name for name in names}
        rights = await secrets.rights(tx, places)
        return {name: rights.get(place, NO_RIGHTS_SET) for place, name in places.items()}

    async def listed(self, database: Database, org: str) -> list[ListedSecret]:
        """The rights are read last: one that is set meanwhile must not look as if every job could use it."""
        existing = await self._store.listed(database, org)
        async with database.transaction() as tx:
            rights = await secrets.rights_of_org(tx, org)
        listed = []
        for stored in existing:
            used = rights.get(stored.place, UsedSecret(NO_RIGHTS_SET, None))
            listed.append(
                ListedSecret(
                    name=name_of(stored.place),
                    rights=used.rights,
                    last_used_at=used.last_used_at,
                    version=stored.version,
                    set_by=stored.set_by,
                    set_at=stored.set_at,
                )
            )
        return listed

    async def remove(self, database: Database, org: str, name: SecretName) -> bool:
        """First the value: rights without a value give nobody anything, and a value without rights is everybody's."""
        place = place_of(org, name)
        existed = await self._store.remove(place)
        async with database.transaction() as tx:
            if (
                existed
            ):  # one that others have set may have no row yet, and its removal is recorded with the row
                await secrets.add_unknown(tx, [place])
            return await secrets.remove(tx, place)

    # What tasks receive ------------------------------------------------------------------------------

    async def look_up(self, tx: Transaction, needs: Collection[JobNeeds], *, used: bool = True) -> Lookup:
        """`used`: it is noted that they were handed out."""
        places = {place_of(need.org, name) for need in needs for name in need.names}
        rights = await secrets.rights(tx, places)
        read = await self._store.look_up(tx, places)
        if used:
            await self.note_use(tx, places)
        return Lookup(needs, rights, read)

    async def hand_out(self, tx: Transaction, needs: Collection[JobNeeds]) -> Handed:
        return await (await self.look_up(tx, needs)).values()

    async def note_use(self, tx: Transaction, places: Collection[SecretPlace]) -> None:
        if self._is_outside and (unknown := set(places) - (await secrets.rights(tx, places)).keys()):
            await secrets.add_unknown(tx, unknown)
        await secrets.note_use(tx, places)

    async def own_values(
        self, database: Database, org: str, names: Collection[SecretName]
    ) -> dict[SecretName, str | PlatformError]:
        """For a process of the platform itself, which is no job; what does not exist is left out."""
        places = {place_of(org, name): name for name in names}
        async with database.transaction() as tx:
            read = await self._store.look_up(tx, places)
            await self.note_use(tx, places)
        return {places[place]: value for place, value in (await read()).items()}


def place_of(org: str, name: SecretName) -> SecretPlace:
    return SecretPlace(org, name.namespace, name.name)


def name_of(place: SecretPlace) -> SecretName:
    name = parse_name(f"{place.namespace}/{place.name}")
    assert name is not None, "checked by the store"
    return name


def allowed_by_both(one: Sequence[str] | None, other: Sequence[str] | None) -> Sequence[str] | None:
    """The jobs that may use a secret by both lists."""
    if one is None or other is None:
        return other if one is None else one
    both = (
        job
        for jobs, others in ((one, other), (other, one))
        for job in jobs
        if is_allowed(SecretRights(tuple(others)), *job.split("/", 1))
    )
    return list(dict.fromkeys(both))


def is_allowed(rights: SecretRights, dag: str, job: str) -> bool:
    allowed = rights.allowed_jobs
    return allowed is None or f"{dag}/{job}" in allowed or f"{dag}/*" in allowed
