"""Who may read and write a dataset: the roles that it names, and the patterns that a token is cut down to.

`may_read` and `may_write` decide. `Access` knows it for all datasets and jobs of an organization, for one caller: a
dataset without the right looks like one that does not exist, and so does the job that writes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Protocol
from uuid import UUID

from traceplane.auth.callers import Caller
from traceplane.auth.roles import RANKS, Role
from traceplane.errors import Forbidden
from traceplane.postgres import personal_data, rights
from traceplane.postgres.database import Transaction
from traceplane.postgres.rights import DatasetRoles


class Subject(Protocol):
    """Whose rights they are: `Caller`, or who asks a query."""

    @property
    def role(self) -> str | None: ...
    @property
    def roles(self) -> Collection[str]: ...
    @property
    def datasets(self) -> tuple[str, ...] | None: ...


def may_read(caller: Subject, dataset_id: str, read_roles: Collection[str] | None) -> bool:
    return _is_within(caller, dataset_id) and _has_one_of(caller, read_roles)


def may_write(caller: Subject, dataset_id: str, write_roles: Collection[str] | None) -> bool:
    """Calls that change something need the rank of a writer besides."""
    return _is_within(caller, dataset_id) and _has_one_of(caller, write_roles)


def _is_within(caller: Subject, dataset_id: str) -> bool:
    """A token may be cut down to some datasets, whatever its roles."""
    return caller.datasets is None or any(fnmatchcase(dataset_id, pattern) for pattern in caller.datasets)


def _has_one_of(caller: Subject, roles: Collection[str] | None) -> bool:
    if roles is None or caller.role == Role.ADMIN:
        return True
    rank = 0 if caller.role is None else RANKS[Role(caller.role)]
    return any(role in caller.roles or (role in RANKS and RANKS[Role(role)] <= rank) for role in roles)


Job = tuple[str, str]
"""Its DAG and its name."""


@dataclass(frozen=True, slots=True)
class Access:
    """What one caller may not do; what is not here, they may."""

    unreadable: frozenset[str] = frozenset()
    """Datasets."""
    unwritable: frozenset[str] = frozenset()
    hidden: frozenset[Job] = frozenset()
    """Jobs that write something which the caller may not read, or write nothing and read it."""
    hidden_ids: Sequence[UUID] = ()
    untold: frozenset[Job] = frozenset()
    """Jobs that read something which the caller may not read: their code may write about it. Personal data is
    included by `with_personal_data`."""
    fixed: frozenset[Job] = frozenset()
    """Jobs that write something which the caller may not write, or write nothing and read it."""
    fixed_ids: Sequence[UUID] = ()
    fixed_dags: frozenset[str] = frozenset()
    within: Subject | None = field(default=None, repr=False)
    """Of a token that is cut down: names that no dataset has are also judged."""

    @property
    def is_limited(self) -> bool:
        return bool(self.unreadable or self.unwritable or self.within is not None)

    def reads(self, dataset_id: str) -> bool:
        if self.within is not None and not _is_within(self.within, dataset_id):
            return False
        return dataset_id not in self.unreadable

    def writes(self, dataset_id: str) -> bool:
        if self.within is not None and not _is_within(self.within, dataset_id):
            return False
        return dataset_id not in self.unwritable

    def sees(self, dag: str, job: str) -> bool:
        return (dag, job) not in self.hidden

    def is_told(self, dag: str, job: str) -> bool:
        """Whether the caller sees what the code of a job writes about its work."""
        return (dag, job) not in self.untold and self.sees(dag, job)

    def readable(self, dataset_ids: Iterable[str]) -> list[str]:
        return [dataset_id for dataset_id in dataset_ids if self.reads(dataset_id)]

    def require_write(self, dataset_id: str) -> None:
        """For a dataset that the caller may read, or whose absence they were told before."""
        if not self.writes(dataset_id):
            raise _not_writable("you may not write this dataset", dataset_id)

    def require_job(self, dag: str, job: str | None) -> None:
        """The same for all that a job writes, or all jobs of a DAG."""
        fixed = sorted(j for d, j in self.fixed if d == dag and job in (None, j))
        if not fixed:
            return
        named = [j for j in fixed if self.sees(dag, j)]
        whose = f"the job {named[0]} of {dag} writes" if named else f"all jobs of {dag} write"
        raise _not_writable(f"you may not write what {whose}", job or dag)

    def require_dag(self, dag: str) -> None:
        if dag in self.fixed_dags:
            raise _not_writable("you may not write all datasets of this DAG", dag)


EVERYTHING = Access()


def _not_writable(message: str, value: str) -> Forbidden:
    return Forbidden(
        "access.dataset_write",
        message,
        value=value,
        next_step="ask an admin for one of its write_roles, or for a token that is not cut down to other datasets",
    )


async def access_of(tx: Transaction, org: str, caller: Subject) -> Access:
    if caller.role == Role.ADMIN and caller.datasets is None:
        return EVERYTHING
    found = await rights.dataset_roles(tx, org, all_datasets=caller.datasets is not None)
    unreadable = [
        d
        for d in found
        if not all(may_read(caller, *one) for one in ((d.dataset_id, d.read_roles), *d.owners))
    ]
    unwritable = [d for d in found if not may_write(caller, d.dataset_id, d.write_roles) or d in unreadable]
    within = caller if caller.datasets is not None else None
    if not unreadable and not unwritable:
        return Access(within=within)
    return Access(
        unreadable=frozenset(d.dataset_id for d in unreadable),
        unwritable=frozenset(d.dataset_id for d in unwritable),
        hidden=_writers(unreadable),
        hidden_ids=[job.job_id for d in unreadable for job in d.writers],
        untold=frozenset((job.dag, job.job) for d in unreadable for job in d.readers),
        fixed=_writers(unwritable),
        fixed_ids=[job.job_id for d in unwritable for job in d.writers],
        fixed_dags=frozenset(d.dag for d in unwritable).union(dag for dag, _ in _writers(unwritable)),
        within=within,
    )


async def with_personal_data(
    tx: Transaction, caller: Caller, access: Access, jobs: Collection[Job]
) -> Access:
    """For calls that show what the code of these jobs wrote: it may be about columns that the caller may not see."""
    if caller.sees_pii:
        return access
    told = {job for job in jobs if access.is_told(*job)}
    return replace(access, untold=access.untold | await personal_data.touched_by(tx, caller.org, told))


def _writers(datasets: Sequence[DatasetRoles]) -> frozenset[Job]:
    return frozenset((job.dag, job.job) for d in datasets for job in d.writers)
