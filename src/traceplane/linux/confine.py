"""Drops a process's privileges before it runs untrusted code.

`Allowed` says what the process keeps; everything else is dropped permanently. The order matters:

    limits → uid → capabilities → memory hidden from others → death with the parent → no new privileges
    → Landlock → seccomp

Operators, queries and decoders are all confined this way. The sandbox of operators adds what only they need: their own
root and namespaces, and supervised connections (`sandbox.confinement`).
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from traceplane.linux import kernel, landlock, operator_ids, seccomp

NOBODY_ELSE = 0o077
"""The umask of a confined process."""
_OPEN_FILES = 1 << 16


@dataclass(frozen=True, slots=True)
class Barriers:
    """The barriers that this machine has, prepared before any process is forked."""

    landlock_abi: int
    """0 if there is none."""
    system_calls: seccomp.Filter | None
    tcp: landlock.Tcp = landlock.Tcp.GRANTED_PORTS

    @property
    def strength(self) -> Strength:
        return Strength(self.landlock_abi, self.system_calls is not None)


class Strength(msgspec.Struct, frozen=True):
    """What a server reports to its owner about the barriers."""

    landlock: int
    """Its ABI; 0 if there is none."""
    seccomp: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Everything that a process keeps."""

    limits: Mapping[int, int]
    """By `resource.RLIMIT_…`; a limit that is already lower stays."""
    readable: Sequence[str] = ()
    hidden: Sequence[str] = ()
    """Exceptions from `readable`."""
    inputs: Sequence[str] = ()
    """Also readable. Untrusted code wrote them, so no link on the way is followed."""
    writable: Sequence[str] = ()
    ports: Sequence[int] = ()
    """Ports of this machine to connect to."""
    uid: int | None = None
    """The user to become; None for no change."""
    supervised: bool = False
    """Whether a process of the same uid makes its connections, and must read its memory for that."""


def no_network() -> Barriers:
    """The barriers of a process that reads files and answers its owner."""
    abi = landlock.supported_abi()
    if not seccomp.supported():
        return Barriers(abi, None)
    return Barriers(
        abi, seccomp.Filter(sockets=seccomp.Sockets.NONE, keep_attributes=True, threads_only=True)
    )


def confine(allowed: Allowed, barriers: Barriers, rules: landlock.Ruleset | None = None) -> int | None:
    """Leaves this process with what is allowed. `rules` may already contain paths that were added earlier.

    Returns the descriptor for a supervisor of connections, if the filter has one.
    """
    for kind, value in allowed.limits.items():
        lower_limit(kind, value)
    os.umask(NOBODY_ELSE)
    if allowed.uid is not None:
        take_uid(allowed.uid)
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1 if allowed.supervised else 0)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # again: a change of uid clears it
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if barriers.landlock_abi:
        rules = rules or landlock.Ruleset(barriers.landlock_abi, tcp=barriers.tcp)
        for path in allowed.readable:
            rules.allow_read_around(path, allowed.hidden)
        rules.allow_read_without_links(allowed.inputs)
        rules.allow_write(allowed.writable)
        for port in allowed.ports:
            rules.allow_connect(port)
        rules.enforce()
    return barriers.system_calls.enforce() if barriers.system_calls is not None else None


def protect_this_process() -> None:
    """Hides this process's memory, environment and descriptors from others of the same uid."""
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


def allow_many_open_files() -> None:
    """Raises this process's soft limit on open files as far as it may. Confined processes lower it again.

    The kernel lets a process send a descriptor only while its user has fewer on their way than the process may open,
    and operators can leave some on their way, up to their own limit.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _OPEN_FILES if most == resource.RLIM_INFINITY else min(_OPEN_FILES, most)
    if now != resource.RLIM_INFINITY and now < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))


def take_uid(uid: int) -> None:
    """Becomes an unprivileged user, in a group of the same number, and in the one that all operators share."""
    os.setgroups([operator_ids.GROUP])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def close_descriptors(kept: Iterable[int]) -> None:
    """Closes everything but 0, 1, 2 and these descriptors."""
    low = 3
    highest = os.sysconf("SC_OPEN_MAX")
    for descriptor in sorted(kept):
        os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, max(highest, 1 << 16))


def lower_limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))
