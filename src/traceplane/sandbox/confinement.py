"""Which barriers this machine has for operators, and how the process that will run user code is confined by them.

`confine` is called in the child after the task is known and before any user code is imported; it
either applies everything that `probe` found to work, or raises, and the child then ends. The order matters:

    descriptors → private root → the privileges that every confined process drops (`linux.confine`) → environment

Layers and what each one stops:

    namespaces         own mount tree, own pid space (a kill reaches every descendant), own IPC
    network_namespace  no interface, with the network off; on Spark's workers, one that leads to Spark only
    supervised_network for jobs with the network: no connection to this machine, its link or the platform
    uid_slots          each slot its own unprivileged uid (when started by root)
    landlock           an allow-list of paths; no ptrace, signals, TCP (by kernel ABI)
    seccomp            no sockets, tracing, namespaces, keys, io_uring, shared memory; where the uid and the
                       mounts are the platform's own, no change of a file's mode, owner, times or attributes
    the rest           clean environment and descriptors, limits, own session: on every machine
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import selectors
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from traceplane.linux import kernel, landlock, network_namespace, seccomp
from traceplane.linux.confine import (
    Allowed,
    Barriers,
    allow_many_open_files,
    confine,
    lower_limit,
    protect_this_process,
    take_uid,
)
from traceplane.linux.connect_supervisor import RESOLVER_ENVIRONMENT, ConnectSupervisor, Destinations
from traceplane.sandbox import private_root
from traceplane.sandbox.frames import (
    Configure,
    NetworkAccess,
    Reach,
    ReachNothing,
    ReachSpark,
    RunLimits,
    ServeSpark,
)

NAMESPACES, NETWORK_NAMESPACE, UID_SLOTS = "namespaces", "network_namespace", "uid_slots"
LANDLOCK, SECCOMP, SUPERVISED_NETWORK = "landlock", "seccomp", "supervised_network"
OPTIONAL_LAYERS = (NAMESPACES, NETWORK_NAMESPACE, UID_SLOTS, LANDLOCK, SECCOMP, SUPERVISED_NETWORK)
ALWAYS = ("clean_environment", "closed_descriptors", "resource_limits", "own_session")
ALWAYS_ON_LINUX = ("no_new_privileges", "no_capabilities", "parent_death_signal", "protected_memory")

_ADDRESS_SPACE_HEADROOM = 8 << 30
"""Allocators and thread stacks reserve far more than they use; the real limit is on data."""
_STACK_BYTES = 8 << 20
"""The usual size. A stack does not count as data either, and could otherwise grow through the whole address space."""
_READABLE_PROC = ("/proc/meminfo", "/proc/cpuinfo", "/proc/stat", "/proc/sys/vm/overcommit_memory")
_READABLE_SYS = ("/sys/devices/system/cpu",)
_SLOT_OWN_PROCESSES = 1
_ROOM_FOR_OTHERS = 256


_NOTHING = ReachNothing()
SPARK_PORT = struct.Struct("=H")
"""What a child sends when it hands over its connections; 0: it uses no Spark."""


@dataclass(frozen=True)
class Isolation:
    """The layers that confine operators on this machine, and the missing ones with the reason."""

    active: tuple[str, ...]
    missing: dict[str, str]
    landlock_abi: int = 0
    network: NetworkAccess = _NOTHING

    def has(self, layer: str) -> bool:
        return layer in self.active

    def weakness(self) -> str | None:
        """Why user code must not run here; None when the minimum is met."""
        if sys.platform != "linux":
            return f"operators can be isolated on Linux only, and this is {sys.platform}"
        if not self.has(LANDLOCK) and not self.has(NAMESPACES):
            return (
                "neither Landlock nor namespaces are available, so a task could read the files of others "
                f"(landlock: {self.missing.get(LANDLOCK)}; namespaces: {self.missing.get(NAMESPACES)})"
            )
        if os.geteuid() == 0 and not self.has(UID_SLOTS):
            return f"the worker runs as root and cannot give operators another uid: {self.missing.get(UID_SLOTS)}"
        if isinstance(self.network, Reach) and not self.has(SUPERVISED_NETWORK):
            return (
                "operators have the network, but their connections cannot be supervised, so they could reach the "
                f"platform's own services: {self.missing.get(SUPERVISED_NETWORK)}"
            )
        return None

    @property
    def keeps_attributes(self) -> bool:
        """Whether only the system call filter keeps operators from changing the modes of the platform's files."""
        return not self.has(UID_SLOTS) and not self.has(NAMESPACES)


def enter_user_namespace() -> None:
    """Enters a user namespace that maps this uid only, with the privilege to create other namespaces."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # a protected process cannot write its own uid map
    kernel.unshare(kernel.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    protect_this_process()


def enter_server_namespaces(isolation: Isolation, private_network: Sequence[int] = ()) -> None:
    """For the fork server: a private copy of the mounts, and no network if tasks get none, or the private network
    with these descriptors."""
    if not isolation.has(NAMESPACES):
        return
    if private_network:
        network_namespace.enter(private_network)
        protect_this_process()
    elif os.geteuid() != 0:
        enter_user_namespace()
    kernel.unshare(kernel.CLONE_NEWNS)
    if isolation.has(NETWORK_NAMESPACE) and not private_network:
        kernel.unshare(kernel.CLONE_NEWNET)


def enter_slot_namespaces(isolation: Isolation) -> None:
    """For a slot: the next fork becomes process 1 of a new pid namespace."""
    if not isolation.has(NAMESPACES):
        return
    if os.geteuid() != 0:
        enter_user_namespace()  # one for each slot, so that its process limit is its own
    kernel.unshare(kernel.CLONE_NEWPID)


# --- probing: once, in children of the fork server, before it has any threads ---------------------


def probe(configure: Configure, private_network: Sequence[int] = ()) -> Isolation:
    """Try each layer in a separate child; a layer counts only if it really worked."""
    missing: dict[str, str] = {}
    active: list[str] = list(ALWAYS + (ALWAYS_ON_LINUX if sys.platform == "linux" else ()))

    def settle(layer: str, reason: str | None) -> None:
        if reason is None:
            active.append(layer)
        else:
            missing[layer] = reason

    attempts: dict[str, Callable[[], str | None]] = {
        LANDLOCK: _why_no_landlock,
        SECCOMP: lambda: None if seccomp.supported() else "no filter for this processor",
        NAMESPACES: lambda: _why_fails(lambda: _try_namespaces(configure, network=False)),
        NETWORK_NAMESPACE: lambda: _why_no_network_namespace(
            configure, NAMESPACES in active, private_network
        ),
        SUPERVISED_NETWORK: lambda: _why_not_supervised(configure, SECCOMP in active),
        UID_SLOTS: lambda: _why_no_uid_slots(configure, NAMESPACES in active),
    }
    for layer, attempt in attempts.items():
        if layer in configure.disabled:
            settle(layer, "disabled in the settings")
        elif sys.platform != "linux":
            settle(layer, f"not available on {sys.platform}")
        else:
            settle(layer, attempt())
    abi = landlock.supported_abi() if LANDLOCK in active else 0
    return Isolation(tuple(active), missing, abi, configure.network)


def _why_no_landlock() -> str | None:
    if landlock.supported_abi() >= 1:
        return None
    return "the kernel has no Landlock (it needs Linux 5.13 with `landlock` in its lsm= list)"


def _why_no_network_namespace(
    configure: Configure, namespaces: bool, private_network: Sequence[int]
) -> str | None:
    if isinstance(configure.network, Reach):
        return "the network is allowed"
    if not namespaces:
        return "it needs namespaces"
    if isinstance(configure.network, ReachSpark | ServeSpark) and not private_network:
        return "the Spark server is not in a network of its own"
    return _why_fails(lambda: _try_namespaces(configure, network=True, private_network=private_network))


def _why_not_supervised(configure: Configure, filters: bool) -> str | None:
    """Tried with the network off too: a worker says at its start whether jobs that ask for the network can have it."""
    if isinstance(configure.network, ReachSpark | ServeSpark):
        return "Spark's tasks get no network"
    if not filters:
        return "it needs seccomp"
    return _why_fails(_try_supervision)


def _why_no_uid_slots(configure: Configure, namespaces: bool) -> str | None:
    if os.geteuid() != 0:
        return "the worker does not run as root"
    if not configure.uids:
        return "no uids are configured for it"
    return _why_fails(lambda: _try_uid(configure, namespaces))


def _try_namespaces(configure: Configure, *, network: bool, private_network: Sequence[int] = ()) -> None:
    layers = (NAMESPACES, NETWORK_NAMESPACE) if network else (NAMESPACES,)
    isolation = Isolation(layers, {})
    enter_server_namespaces(isolation, private_network)
    template = private_root.Template(configure.folder, configure.uids)
    enter_slot_namespaces(isolation)
    reason = _why_fails(lambda: template.raise_root().copy_for_task())
    if reason is not None:
        raise OSError(errno.EPERM, reason)


def _try_supervision() -> None:
    """A child of this process connects to this machine, and a supervisor must refuse it."""
    ours, theirs = socket.socketpair()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            kernel.prctl(kernel.PR_SET_DUMPABLE, 0 if os.geteuid() == 0 else 1)
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
            listener = seccomp.Filter(sockets=seccomp.Sockets.SUPERVISED).enforce()
            assert listener is not None
            _hand_over_connections(listener, theirs)
            with socket.socket() as client:
                outcome = client.connect_ex(("127.0.0.1", 1))
            os.write(writer, errno.errorcode.get(outcome, str(outcome)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    theirs.close()
    with selectors.DefaultSelector() as selector:
        _, descriptors, _, _ = socket.recv_fds(ours, SPARK_PORT.size, 1)
        supervisor = ConnectSupervisor(descriptors[0], Destinations(), selector, lambda thread: None)
        selector.register(reader, selectors.EVENT_READ, lambda: None)
        while not any(key.fileobj == reader or key.data() for key, _ in selector.select()):
            pass
        supervisor.close()
    outcome_name = os.read(reader, 100).decode()
    os.waitpid(child, 0)
    if outcome_name != "EACCES":
        raise OSError(errno.EACCES, f"a supervised connection ended with {outcome_name or 'nothing'}")


def _hand_over_connections(listener: int, supervisor: socket.socket, spark_port: int | None = None) -> None:
    """Hand over the descriptor on which the filter asks about connections. Besides the usual targets, they may go to
    the task's own Spark server."""
    socket.send_fds(supervisor, [SPARK_PORT.pack(spark_port or 0)], [listener])
    os.close(listener)
    supervisor.close()


def _try_uid(configure: Configure, namespaces: bool) -> None:
    if namespaces:
        enter_server_namespaces(Isolation((NAMESPACES,), {}))
        root = private_root.Template(configure.folder, configure.uids).raise_root()
        root.copy_for_task()
        root.enter(readable=(), writable=(), temp=configure.folder)
    take_uid(configure.uids[0])
    for path in (os.__file__, __file__, sys.executable):
        _check_readable(path)
    if not namespaces:
        os.stat(os.path.join(configure.folder, "."))


def _check_readable(path: str) -> None:
    """Names the file that the path leads to: of a chain of links, the one whose end is not visible here."""
    end = [path, *private_root.links_on_the_way(path)][-1]
    try:
        with open(path, "rb"):
            pass
    except FileNotFoundError as error:
        if os.path.islink(end):
            reason = f"{path} leads to {os.readlink(end)}, which operators cannot see"
            raise FileNotFoundError(error.errno, reason) from error
        raise


def _why_fails(attempt: Callable[[], object]) -> str | None:
    """Run `attempt` in a child; None if it worked, otherwise what went wrong."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            attempt()
            os._exit(0)
        except BaseException as error:
            os.write(writer, str(error).encode()[:500] or repr(error).encode())
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        reason = pipe.read().decode(errors="replace")
    _, status = os.waitpid(pid, 0)
    return None if status == 0 else reason or f"the probe ended with status {status}"


# --- confining ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Paths:
    """What one task may reach, with the paths as they are outside."""

    readable: tuple[str, ...]
    writable: tuple[str, ...]
    temp: str
    inputs: tuple[str, ...] = ()
    """Readable too. Untrusted code wrote them, so no link is followed."""
    temp_at: str = private_root.TEMP
    """Its path inside a private root."""
    spark_port: int | None = None
    grantable: tuple[str, ...] = ()
    """Where folders to write are shown later."""


class Cell:
    """One child's confinement: the generic half is built while it waits, the rest in `confine`."""

    def __init__(
        self,
        isolation: Isolation,
        *,
        root: private_root.PrivateRoot | None,
        system_calls: seccomp.Filter | None,
        uid: int | None,
        hidden: Iterable[str] = (),
        supervisor: socket.socket | None = None,
        own_mounts: bool = True,
    ) -> None:
        self._isolation = isolation
        self._hidden = tuple(hidden)
        self._system_calls = system_calls
        self._uid = uid
        self._root = root
        self._supervisor = supervisor
        if root is not None and own_mounts:
            root.copy_for_task()
        self._rules = self._generic_rules() if isolation.has(LANDLOCK) else None

    def _generic_rules(self) -> landlock.Ruleset:
        rules = landlock.Ruleset(self._isolation.landlock_abi, tcp=_tcp(self._isolation.network))
        if self._root is not None:
            rules.allow_read((self._root.at("/"),))
            rules.allow_write((self._root.at("/dev/null"),))
            return rules
        rules.allow_read(private_root.SYSTEM_FOLDERS)
        rules.allow_read((*private_root.SYSTEM_FILES, *private_root.SYSTEM_SETTINGS, "/etc/passwd"))
        rules.allow_read((*private_root.DEVICES, *_READABLE_PROC, *_READABLE_SYS))
        for folder in private_root.interpreter_folders():
            rules.allow_read_around(folder, self._hidden)
        rules.allow_write(("/dev/null",))
        return rules

    def temp_inside(self, paths: Paths) -> str:
        return paths.temp_at if self._root is not None else paths.temp

    def confine(self, paths: Paths, limits: RunLimits, *, spare_processes: int) -> None:
        """Leave this process with nothing but what the task needs, permanently."""
        if self._root is not None:
            self._root.enter(
                readable=paths.readable,
                inputs=paths.inputs,
                writable=paths.writable,
                temp=paths.temp,
                temp_at=paths.temp_at,
                hidden=self._hidden,
            )
        temp = self.temp_inside(paths)
        isolation = self._isolation
        resource_limits = _resource_limits(limits, processes=limits.processes + spare_processes)
        open_files = resource_limits.pop(resource.RLIMIT_NOFILE)
        listener = confine(
            Allowed(
                limits=resource_limits,
                readable=paths.readable if self._root is None else (),
                hidden=self._hidden,
                inputs=paths.inputs if self._root is None else (),
                writable=(temp, *paths.writable, *paths.grantable),
                ports=() if paths.spark_port is None else (paths.spark_port,),
                uid=self._uid,
                supervised=self._supervisor is not None and self._uid is None,
            ),
            Barriers(isolation.landlock_abi, self._system_calls, _tcp(isolation.network)),
            self._rules,
        )
        if self._supervisor is not None and listener is not None:
            allow_many_open_files()
            _hand_over_connections(listener, self._supervisor, paths.spark_port)
        lower_limit(resource.RLIMIT_NOFILE, open_files)  # last: with it, no descriptor might be sent
        os.chdir(temp)


def _tcp(network: NetworkAccess) -> landlock.Tcp:
    match network:
        case ServeSpark():
            return landlock.Tcp.ALL
        case Reach():
            return landlock.Tcp.CONNECT
        case ReachSpark() | ReachNothing():
            return landlock.Tcp.GRANTED_PORTS


def processes_not_of_the_task(isolation: Isolation) -> int:
    """The kernel counts processes by uid; leave room for those of this uid that run no user code."""
    if isolation.has(UID_SLOTS):
        return 0
    if isolation.has(NAMESPACES):
        return _SLOT_OWN_PROCESSES  # a user namespace for each slot counts on its own
    return _threads_of_this_user() + _ROOM_FOR_OTHERS if sys.platform == "linux" else 1 << 12


def _threads_of_this_user() -> int:
    mine, count = str(os.getuid()), 0
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, KeyError), open(f"/proc/{name}/status") as file:
            fields = dict(line.split(":", 1) for line in file)
            if fields["Uid"].split()[0] == mine:
                count += int(fields["Threads"])
    return count


def _resource_limits(limits: RunLimits, *, processes: int) -> dict[int, int]:
    values: dict[int, int | None] = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: limits.cpu_seconds,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NPROC: processes,
        resource.RLIMIT_DATA: limits.memory_bytes,
    }
    if limits.memory_bytes is not None:
        values[resource.RLIMIT_AS] = limits.memory_bytes + _ADDRESS_SPACE_HEADROOM
        values[resource.RLIMIT_STACK] = _STACK_BYTES
    return {kind: value for kind, value in values.items() if value is not None}


def clean_environment(network: NetworkAccess) -> dict[str, str]:
    """The environment of operator code, besides HOME and TMPDIR."""
    folders = (os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin")
    environment = {"PATH": os.pathsep.join(folders), "LANG": "C.UTF-8", "TZ": "UTC"}
    return environment | (RESOLVER_ENVIRONMENT if isinstance(network, Reach) else {})


def system_call_filter(isolation: Isolation) -> seccomp.Filter | None:
    if not isolation.has(SECCOMP):
        return None
    match isolation.network:
        case Reach():
            sockets = seccomp.Sockets.SUPERVISED if isolation.has(SUPERVISED_NETWORK) else seccomp.Sockets.TCP
        case ServeSpark() if isolation.has(NETWORK_NAMESPACE):
            sockets = seccomp.Sockets.INTERNET
        case ServeSpark():
            sockets = seccomp.Sockets.SERVER
        case ReachSpark():
            sockets = seccomp.Sockets.TCP
        case ReachNothing():
            sockets = seccomp.Sockets.NONE
    return seccomp.Filter(sockets=sockets, keep_attributes=isolation.keeps_attributes)
