"""Linux calls that the sandbox needs and the standard library lacks.

Each function is one system call; a failure is an `OSError` that names the call. Nothing here makes decisions. On other
systems the module imports, and every call fails with ENOSYS.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_RDONLY = 0x1
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_MOVE = 0x2000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

_SYS_MOUNT_SETATTR = 442
_SYS_PIDFD_OPEN = 434
_SYS_PIDFD_GETFD = 438
_PIDFD_THREAD = os.O_EXCL
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 0x1
_MOUNT_ATTR_NOSUID = 0x2
_MOUNT_ATTR_NODEV = 0x4
_CAPABILITY_VERSION_3 = 0x20080522
_HIGHEST_CAPABILITY = 63

_libc = ctypes.CDLL(None, use_errno=True)
if sys.platform == "linux":
    # Looked up here, in the fork server, rather than by every child before its task.
    _libc.syscall, _libc.prctl, _libc.unshare, _libc.mount, _libc.capset  # noqa: B018 -- the access is the lookup


class _Piece(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilitySets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def _linux_only(call: str) -> None:
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, f"{call}: only Linux has it")


def syscall(name: str, number: int, *arguments: object) -> int:
    """A raw system call; pass ctypes values for anything but small ints and bytes."""
    _linux_only(name)
    return _checked(int(_libc.syscall(ctypes.c_long(number), *arguments)), name)


def prctl(option: int, argument: object = 0, second: object = 0) -> int:
    _linux_only("prctl")
    arguments = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in (argument, second, 0, 0)]
    return _checked(int(_libc.prctl(option, *arguments)), f"prctl({option})")


def unshare(flags: int) -> None:
    _linux_only("unshare")
    _checked(int(_libc.unshare(flags)), f"unshare({flags:#x})")


def setns(descriptor: int, kind: int) -> None:
    _linux_only("setns")
    _checked(int(_libc.setns(descriptor, kind)), f"setns({kind:#x})")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    _linux_only("mount")
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    result = _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _checked(int(result), f"mount {source or kind} on {target}")


def bind(source: str, target: str) -> None:
    """Also shows `source`, with everything mounted below it, at `target`."""
    mount(source, target, None, MS_BIND | MS_REC)


def move(source: str, target: str) -> None:
    """Moves a mount to another place."""
    mount(source, target, None, MS_MOVE)


def detach(path: str) -> None:
    """Detaches the mount at `path`; open files in it stay usable."""
    _linux_only("umount2")
    flags = _MNT_DETACH | _UMOUNT_NOFOLLOW
    _checked(int(_libc.umount2(os.fsencode(path), flags)), f"umount2 {path}")


def make_mount_read_only(path: str) -> None:
    """Makes the mount at `path`, and all below it, read-only and without set-uid (Linux 5.12).

    Fails with EBUSY while a file in it is open for writing.
    """
    _set_mount_flags(path, _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID)


def make_mount_harmless(path: str) -> None:
    """Without set-uid and devices."""
    _set_mount_flags(path, _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV)


def _set_mount_flags(path: str, flags: int) -> None:
    attributes = _MountAttributes(flags, 0, 0, 0)
    pointer, size = ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes))
    name = f"mount_setattr {path}"
    syscall(name, _SYS_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), _AT_RECURSIVE, pointer, size)


def handle_of_thread(thread: int, process: int | None) -> int:
    """A pidfd of a thread; `process` is its process, for kernels before 6.9, which have pidfds only for processes."""
    try:
        return syscall("pidfd_open", _SYS_PIDFD_OPEN, thread, _PIDFD_THREAD)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return syscall("pidfd_open", _SYS_PIDFD_OPEN, thread if process is None else process, 0)


def descriptor_of(handle: int, number: int) -> int:
    """A copy of another process's descriptor."""
    return syscall("pidfd_getfd", _SYS_PIDFD_GETFD, handle, number, 0)


def read_memory(pid: int, address: int, length: int) -> bytes:
    """Reads another process's memory; returns fewer bytes where it ends."""
    _linux_only("process_vm_readv")
    buffer = ctypes.create_string_buffer(length)
    here = _Piece(ctypes.cast(buffer, ctypes.c_void_p), length)
    there = _Piece(ctypes.c_void_p(address), length)
    one = ctypes.c_ulong(1)
    count = _libc.process_vm_readv(pid, ctypes.byref(here), one, ctypes.byref(there), one, ctypes.c_ulong(0))
    return buffer.raw[: _checked(int(count), "process_vm_readv")]


def connect(descriptor: int, address: bytes) -> int:
    """connect(2) with the address as it is in memory; returns 0 or the error number."""
    _linux_only("connect")
    return ctypes.get_errno() if _libc.connect(descriptor, address, len(address)) < 0 else 0


def shrink_capability_bounds() -> None:
    """Drops every capability from the bounding set; no later exec can restore one."""
    for capability in range(_HIGHEST_CAPABILITY + 1):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return  # beyond the last one that this kernel knows
            raise


def drop_capabilities() -> None:
    """Gives up every capability of this thread, for itself and everything it executes."""
    _linux_only("capset")
    try:
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel without ambient capabilities
            raise
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    empty = (_CapabilitySets * 2)()
    _checked(int(_libc.capset(ctypes.byref(header), ctypes.byref(empty))), "capset")
