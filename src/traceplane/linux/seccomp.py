"""A system call filter for operator code: calls that no data job needs fail.

Rejected: tracing and reading other processes; namespaces and mounts; kernel keys; BPF; performance counters; io_uring,
which would bypass this filter; memory that would bypass the memory limit, because it is shared without a file (System
V, memfd, anonymous mappings) or counts as a stack; leases on files, because whoever opens such a file waits for the
holder; limits and priorities of other processes, since a slot's next tasks inherit them and a limit can end a process;
sockets by family and type, and listening on them (`Sockets`). Unix sockets with a path are always rejected,
since Landlock does not cover them and the database may listen on one; `socketpair` works. A rejected call returns EPERM
or EACCES, or ENOSYS where libraries then fall back; a call for another architecture kills the process.

Where neither a separate uid nor a mount protects the platform's files from a process (`keep_attributes`), changes of
modes, owners, times and extended attributes are ignored: the call reports success and does nothing, since libraries
change the modes of files that they have just written. The same holds for the processors of another thread, which
libraries choose for their own ones.

A process that needs no others (`threads_only`) can create threads, and neither processes nor run programs.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from enum import StrEnum

from traceplane.linux import kernel

_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER = 1
_NEW_LISTENER = 1 << 3
_ALLOW = 0x7FFF0000
_ASK_LISTENER = 0x7FC00000
_KILL_PROCESS = 0x80000000
_ERRNO = 0x00050000

_LOAD_WORD, _JUMP_IF_EQUAL, _JUMP_IF_ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x45, 0x54, 0x06
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE = 0, 4
_OFFSET_ARGUMENTS = (16, 24, 32, 40)
"""The lower half of an argument: flags, families and types use no more."""
_UPPER_HALF = 4
_X32_BIT = 0x40000000
_NAMESPACE_FLAGS = 0x7E020000
"""CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}."""
_CLONE_THREAD = 0x00010000
_SOCKET_TYPE_MASK = 0xF

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86_64, aarch64); -1 where the architecture has no such call.
_REFUSED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "unshare": (272, 97),
    "setns": (308, 268),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "personality": (135, 92),
    "vhangup": (153, 58),
    "fanotify_init": (300, 262),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    "modify_ldt": (154, -1),
}
_CHANGES_ATTRIBUTES = {
    "chmod": (90, -1),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, -1),
    "lchown": (94, -1),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "utime": (132, -1),
    "utimes": (235, -1),
    "futimesat": (261, -1),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}
_OF_A_PROCESS = {
    "prlimit64": (302, 261),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
}
"""Their first argument is a process; 0 is the caller, which is what libraries use."""
_SCHED_SETAFFINITY = (203, 122)
_PRIORITIES = {"setpriority": ((141, 140), os.PRIO_PROCESS), "ioprio_set": ((251, 30), 1)}
"""Their numbers, and the first argument with which the second one is a process."""
_STARTS_PROCESSES = {"fork": (57, -1), "vfork": (58, -1), "execve": (59, 221), "execveat": (322, 281)}
_CLONE, _CLONE3, _SOCKET, _SOCKETPAIR = (56, 220), (435, 435), (41, 198), (53, 199)
_MMAP, _CONNECT, _FCNTL = (9, 222), (42, 203), (72, 25)
_SERVES = {"listen": (50, 201), "accept": (43, 202), "accept4": (288, 242)}
"""A socket that listens without being bound gets a port by itself, which Landlock does not check."""
_SENDS = {"sendto": ((44, 206), 3), "sendmsg": ((46, 211), 2), "sendmmsg": ((307, 269), 3)}
"""Their numbers, and which argument holds the flags."""
_FAST_OPEN = 0x20000000
_SHARED, _ANONYMOUS, _GROWS_DOWN = 0x01, 0x20, 0x100
_SET_LEASE, _SET_DELEGATION = 1024, 1040
_NETLINK, _NETLINK_ROUTE = 16, 0


class Sockets(StrEnum):
    """Which sockets a process may create, besides pairs."""

    NONE = "none"
    TCP = "tcp"
    """Outgoing TCP to anywhere; no incoming connections."""
    SUPERVISED = "supervised"
    """The same, but a supervisor makes the connections: see `connect_supervisor`."""
    SERVER = "server"
    """TCP in both directions."""
    INTERNET = "internet"
    """UDP too: Java uses it to find the machine's addresses."""

    @property
    def listens(self) -> bool:
        return self in (Sockets.SERVER, Sockets.INTERNET)


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("jt", ctypes.c_uint8),
        ("jf", ctypes.c_uint8),
        ("k", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction)))


_Rule = tuple[int, int, int, int]


def supported() -> bool:
    return os.uname().machine in _ARCHITECTURES


def _refuse(number: int) -> _Rule:
    return (_RETURN, 0, 0, _ERRNO | number)


def _when_call(number: int, body: list[_Rule]) -> list[_Rule]:
    """Runs `body` for this call and skips it for others; `body` must end in a return."""
    return [(_JUMP_IF_EQUAL, 0, len(body), number), *body]


def _argument(position: int) -> _Rule:
    return (_LOAD_WORD, 0, 0, _OFFSET_ARGUMENTS[position])


def _sockets(sockets: Sockets) -> list[_Rule]:
    if sockets is Sockets.NONE:
        return [_refuse(errno.EACCES)]
    # How a server's libraries find the machine's addresses. A client's do so too, but work without an answer.
    addresses: list[_Rule] = [
        (_JUMP_IF_EQUAL, 0, 4, _NETLINK),
        _argument(2),
        (_JUMP_IF_EQUAL, 0, 1, _NETLINK_ROUTE),
        (_RETURN, 0, 0, _ALLOW),
        _refuse(errno.EACCES),
    ]
    return [
        _argument(0),
        *(addresses if sockets.listens else ()),
        (_JUMP_IF_EQUAL, 2, 0, int(socket.AF_INET)),
        (_JUMP_IF_EQUAL, 1, 0, int(socket.AF_INET6)),
        _refuse(errno.EACCES),
        _argument(2),
        (_JUMP_IF_EQUAL, 2, 0, 0),
        (_JUMP_IF_EQUAL, 1, 0, socket.IPPROTO_TCP),
        _refuse(errno.EACCES),
        *(_only(socket.SOCK_STREAM, socket.SOCK_DGRAM) if sockets is Sockets.INTERNET else _streams_only()),
    ]


def _streams_only() -> list[_Rule]:
    """Also for pairs: a datagram pair could be reconnected to a socket with a path; a stream pair cannot."""
    return _only(socket.SOCK_STREAM)


def _only(*kinds: socket.SocketKind) -> list[_Rule]:
    """Other protocols are not needed, and the kernel would load their code for any caller."""
    allowed: list[_Rule] = []
    for kind in kinds:
        allowed += [(_JUMP_IF_EQUAL, 0, 1, int(kind)), (_RETURN, 0, 0, _ALLOW)]
    return [_argument(1), (_AND, 0, 0, _SOCKET_TYPE_MASK), *allowed, _refuse(errno.EACCES)]


def _unless_any_flag(position: int, flags: int) -> list[_Rule]:
    return [
        _argument(position),
        (_JUMP_IF_ANY_BIT, 0, 1, flags),
        _refuse(errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _only_threads() -> list[_Rule]:
    return [
        _argument(0),
        (_JUMP_IF_ANY_BIT, 0, 1, _NAMESPACE_FLAGS),
        _refuse(errno.EPERM),
        (_JUMP_IF_ANY_BIT, 1, 0, _CLONE_THREAD),
        _refuse(errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _unless_of_itself(position: int, otherwise: _Rule) -> list[_Rule]:
    """The argument is a process, and must be 0: a filter does not know the caller's number."""
    return [
        _argument(position),
        (_JUMP_IF_EQUAL, 0, 3, 0),
        (_LOAD_WORD, 0, 0, _OFFSET_ARGUMENTS[position] + _UPPER_HALF),
        (_JUMP_IF_EQUAL, 0, 1, 0),
        (_RETURN, 0, 0, _ALLOW),
        otherwise,
    ]


def _own_priority_only(kind: int) -> list[_Rule]:
    return [
        _argument(0),
        (_JUMP_IF_EQUAL, 1, 0, kind),
        _refuse(errno.EPERM),
        *_unless_of_itself(1, _refuse(errno.EPERM)),
    ]


def _no_memory_that_nothing_counts() -> list[_Rule]:
    return [
        _argument(3),
        (_JUMP_IF_ANY_BIT, 0, 1, _GROWS_DOWN),
        _refuse(errno.ENOMEM),
        (_AND, 0, 0, _SHARED | _ANONYMOUS),
        (_JUMP_IF_EQUAL, 0, 1, _SHARED | _ANONYMOUS),
        _refuse(errno.ENOMEM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _no_leases() -> list[_Rule]:
    """A file's owner may do this, and operators of an ordinary user's worker own all files of the platform."""
    return [
        _argument(1),
        (_JUMP_IF_EQUAL, 1, 0, _SET_LEASE),
        (_JUMP_IF_EQUAL, 0, 1, _SET_DELEGATION),
        _refuse(errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def program(
    machine: str, *, sockets: Sockets, keep_attributes: bool = False, threads_only: bool = False
) -> list[_Rule]:
    """The filter as classic BPF: (code, jump if true, jump if false, operand)."""
    column = list(_ARCHITECTURES).index(machine)
    rules: list[_Rule] = [
        (_LOAD_WORD, 0, 0, _OFFSET_ARCHITECTURE),
        (_JUMP_IF_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD_WORD, 0, 0, _OFFSET_NUMBER),
    ]
    if machine == "x86_64":
        rules += [(_JUMP_IF_ANY_BIT, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL_PROCESS)]
    for numbers in _REFUSED.values():
        if numbers[column] >= 0:
            rules += _when_call(numbers[column], [_refuse(errno.EPERM)])
    for numbers in _CHANGES_ATTRIBUTES.values() if keep_attributes else ():
        if numbers[column] >= 0:
            rules += _when_call(numbers[column], [_refuse(0)])
    # clone3 passes its flags in memory, where a filter cannot see them; libraries then use clone.
    rules += _when_call(_CLONE3[column], [_refuse(errno.ENOSYS)])
    rules += _when_call(
        _CLONE[column], _only_threads() if threads_only else _unless_any_flag(0, _NAMESPACE_FLAGS)
    )
    for numbers in _STARTS_PROCESSES.values() if threads_only else ():
        if numbers[column] >= 0:
            rules += _when_call(numbers[column], [_refuse(errno.EPERM)])
    for numbers in _OF_A_PROCESS.values():
        rules += _when_call(numbers[column], _unless_of_itself(0, _refuse(errno.EPERM)))
    for numbers, kind in _PRIORITIES.values():
        rules += _when_call(numbers[column], _own_priority_only(kind))
    rules += _when_call(_SCHED_SETAFFINITY[column], _unless_of_itself(0, _refuse(0)))
    rules += _when_call(_MMAP[column], _no_memory_that_nothing_counts())
    rules += _when_call(_FCNTL[column], _no_leases())
    rules += _when_call(_SOCKET[column], _sockets(sockets))
    rules += _when_call(_SOCKETPAIR[column], _streams_only())
    for numbers in () if sockets.listens else _SERVES.values():
        rules += _when_call(numbers[column], [_refuse(errno.EACCES)])
    if sockets is Sockets.SUPERVISED:
        rules += _when_call(_CONNECT[column], [(_RETURN, 0, 0, _ASK_LISTENER)])
        for numbers, flags in _SENDS.values():  # sending can also connect, with the right flag
            rules += _when_call(numbers[column], _unless_any_flag(flags, _FAST_OPEN))
    return [*rules, (_RETURN, 0, 0, _ALLOW)]


class Filter:
    """The compiled filter; built once, enforced in every child."""

    def __init__(
        self, *, sockets: Sockets, keep_attributes: bool = False, threads_only: bool = False
    ) -> None:
        self.supervised = sockets is Sockets.SUPERVISED
        machine = os.uname().machine
        rules = program(machine, sockets=sockets, keep_attributes=keep_attributes, threads_only=threads_only)
        self._call = _SYS_SECCOMP[machine]
        self._instructions = (_Instruction * len(rules))(*(_Instruction(*rule) for rule in rules))
        self._program = _Program(len(rules), self._instructions)

    def enforce(self) -> int | None:
        """Applies the filter to this process and its children, permanently. Needs no-new-privileges.

        Returns the descriptor for a supervisor, if connections are supervised.
        """
        flags = _NEW_LISTENER if self.supervised else 0
        program = ctypes.byref(self._program)
        listener = kernel.syscall("seccomp", self._call, _SET_MODE_FILTER, ctypes.c_ulong(flags), program)
        return listener if self.supervised else None
