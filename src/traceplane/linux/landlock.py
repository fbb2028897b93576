"""Landlock: an allow-list of paths, no TCP, and no signals or ptrace out of the sandbox.

A process that restricts itself can reach only the paths it was granted, for the rest of its life and that of its
children. Besides these rules, a restricted process can trace, and read the /proc entries of, only its own descendants
(kernel ABI 1); can neither bind nor connect TCP unless granted (ABI 4); and can neither signal nor connect over
abstract sockets to any process outside (ABI 6).

Landlock does not cover connecting to a unix socket with a path (see `seccomp`), and UDP.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Iterable
from enum import Enum

from traceplane.linux import kernel, plain_files

_SYS_CREATE_RULESET = 444
_SYS_ADD_RULE = 445
_SYS_RESTRICT_SELF = 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_RULE_NET_PORT = 2

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_ALL_OF_ABI_1 = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1
_SCOPE_ABSTRACT_UNIX, _SCOPE_SIGNAL = 1 << 0, 1 << 1

_READ = _EXECUTE | _READ_FILE | _READ_DIR
_MEANINGFUL_ON_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV


class _RulesetAttributes(ctypes.Structure):
    _fields_ = (("access_fs", ctypes.c_uint64), ("access_net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _NetPort(ctypes.Structure):
    _fields_ = (("allowed_access", ctypes.c_uint64), ("port", ctypes.c_uint64))


class Tcp(Enum):
    """What a ruleset allows of TCP, where the kernel can restrict it."""

    ALL = 0
    CONNECT = _BIND_TCP
    """No listening."""
    GRANTED_PORTS = _BIND_TCP | _CONNECT_TCP
    """No listening, and only connections to granted ports; none are granted at first."""


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def supported_abi() -> int:
    """The kernel's Landlock ABI; 0 if it has none or it is disabled."""
    nothing, zero = ctypes.c_void_p(None), ctypes.c_size_t(0)
    try:
        return kernel.syscall("landlock", _SYS_CREATE_RULESET, nothing, zero, _CREATE_RULESET_VERSION)
    except OSError:
        return 0


def _handled_file_access(abi: int) -> int:
    handled = _ALL_OF_ABI_1
    for needed, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
        if abi >= needed:
            handled |= right
    return handled


class Ruleset:
    """A growing allow-list; `enforce` applies it to this process permanently."""

    def __init__(self, abi: int, *, tcp: Tcp) -> None:
        self._file_access = _handled_file_access(abi)
        network = 0 if abi < 4 else tcp.value
        self._restricts_connections = bool(network & _CONNECT_TCP)
        scoped = _SCOPE_ABSTRACT_UNIX | _SCOPE_SIGNAL if abi >= 6 else 0
        attributes = _RulesetAttributes(self._file_access, network, scoped)
        size = 24 if abi >= 6 else 16 if abi >= 4 else 8
        pointer = ctypes.byref(attributes)
        self._fd = kernel.syscall(
            "landlock_create_ruleset", _SYS_CREATE_RULESET, pointer, ctypes.c_size_t(size), 0
        )

    def allow_read(self, paths: Iterable[str]) -> None:
        """Allows reading and executing; a path that does not exist is skipped."""
        for path in paths:
            self._allow(path, _READ)

    def allow_read_around(self, folder: str, hidden: Iterable[str]) -> None:
        """Allows reading `folder` except the hidden paths in it, of which only the names can be listed."""
        inside = [path for path in hidden if path.startswith(folder.rstrip("/") + "/")]
        if not inside:
            self.allow_read((folder,))
            return
        self._allow(folder, _READ_DIR)
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.path not in inside and not entry.is_symlink():
                    self.allow_read_around(entry.path, inside)

    def allow_read_without_links(self, paths: Iterable[str]) -> None:
        """The same for paths where a hostile process may have put a link, which raises ELOOP."""
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self._allow_opened(plain_files.open_place(path), _READ, path)

    def allow_write(self, paths: Iterable[str]) -> None:
        """Allows everything but executing and creating device nodes."""
        for path in paths:
            self._allow(path, self._file_access & ~(_EXECUTE | _MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV))

    def allow_connect(self, port: int) -> None:
        if self._restricts_connections:
            rule = ctypes.byref(_NetPort(_CONNECT_TCP, port))
            kernel.syscall("landlock_add_rule", _SYS_ADD_RULE, self._fd, _RULE_NET_PORT, rule, 0)

    def _allow(self, path: str, access: int) -> None:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        self._allow_opened(fd, access, path)

    def _allow_opened(self, fd: int, access: int, name: str) -> None:
        """Takes the file or folder of the descriptor, and closes it."""
        call = f"landlock_add_rule {name}"
        try:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                access &= _MEANINGFUL_ON_A_FILE
            pointer = ctypes.byref(_PathBeneath(access, fd))
            kernel.syscall(call, _SYS_ADD_RULE, self._fd, _RULE_PATH_BENEATH, pointer, 0)
        finally:
            os.close(fd)

    def enforce(self) -> None:
        kernel.syscall("landlock_restrict_self", _SYS_RESTRICT_SELF, self._fd, 0)
        os.close(self._fd)
