"""A system call filter for operator code: what no data job needs is answered with an error.

Refused: tracing and reading other processes, namespaces and mounts, kernel keys, BPF, performance
counters, io_uring (it would bypass this filter), System V and memfd shared memory (they would
bypass the memory limit), and sockets by family: none with the network off, IPv4, IPv6 and netlink
with it on. Unix sockets with a path are always refused, since Landlock does not cover them and the
database may listen on one; `socketpair` works. A refused call returns EPERM, or ENOSYS where
libraries then fall back; a call made for another architecture kills the process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket

from traceplane.linux import kernel

_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_ALLOW = 0x7FFF0000
_KILL_PROCESS = 0x80000000
_ERRNO = 0x00050000

_LOAD_WORD, _JUMP_IF_EQUAL, _JUMP_IF_ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x45, 0x54, 0x06
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE, _OFFSET_FIRST_ARGUMENT, _OFFSET_SECOND_ARGUMENT = 0, 4, 16, 24
_X32_BIT = 0x40000000
_NAMESPACE_FLAGS = 0x7E020000
"""CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}."""
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
_CLONE, _CLONE3, _SOCKET, _SOCKETPAIR = (56, 220), (435, 435), (41, 198), (53, 199)
_NETLINK = 16


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
    """Run `body` for this call and skip it for others; `body` must end in a return."""
    return [(_JUMP_IF_EQUAL, 0, len(body), number), *body]


def _sockets(families: tuple[int, ...]) -> list[_Rule]:
    accepted = [
        rule for family in families for rule in ((_JUMP_IF_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW))
    ]
    return [(_LOAD_WORD, 0, 0, _OFFSET_FIRST_ARGUMENT), *accepted, _refuse(errno.EACCES)]


def _stream_pairs_only() -> list[_Rule]:
    # A datagram pair could be reconnected to a socket with a path; a stream pair cannot.
    return [
        (_LOAD_WORD, 0, 0, _OFFSET_SECOND_ARGUMENT),
        (_AND, 0, 0, _SOCKET_TYPE_MASK),
        (_JUMP_IF_EQUAL, 0, 1, int(socket.SOCK_STREAM)),
        (_RETURN, 0, 0, _ALLOW),
        _refuse(errno.EACCES),
    ]


def _no_namespaces() -> list[_Rule]:
    return [
        (_LOAD_WORD, 0, 0, _OFFSET_FIRST_ARGUMENT),
        (_JUMP_IF_ANY_BIT, 0, 1, _NAMESPACE_FLAGS),
        _refuse(errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def program(machine: str, *, network: bool) -> list[_Rule]:
    """The filter as classic BPF: (code, jump if true, jump if false, operand)."""
    column = list(_ARCHITECTURES).index(machine)
    families = (int(socket.AF_INET), int(socket.AF_INET6), _NETLINK) if network else ()
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
    # clone3 passes its flags in memory, out of a filter's sight; libraries then use clone.
    rules += _when_call(_CLONE3[column], [_refuse(errno.ENOSYS)])
    rules += _when_call(_CLONE[column], _no_namespaces())
    rules += _when_call(_SOCKET[column], _sockets(families))
    rules += _when_call(_SOCKETPAIR[column], _stream_pairs_only())
    return [*rules, (_RETURN, 0, 0, _ALLOW)]


class Filter:
    """The compiled filter; made once, enforced in every child."""

    def __init__(self, *, network: bool) -> None:
        rules = program(os.uname().machine, network=network)
        self._instructions = (_Instruction * len(rules))(*(_Instruction(*rule) for rule in rules))
        self._program = _Program(len(rules), self._instructions)

    def enforce(self) -> None:
        """Apply the filter to this process and its children, for good. Needs no-new-privileges."""
        kernel.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(self._program))
