"""Opens what a path names, where somebody hostile may have put a link in its place.

Files of the object store were written by operators and by Spark. Who opens one with rights that those do not have
opens it here: no part of the path may be a link, and what is looked at is what was opened.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

_ITSELF = os.O_NOFOLLOW | os.O_CLOEXEC
_PLACE = getattr(os, "O_PATH", os.O_RDONLY) | _ITSELF


def open_place(path: str) -> int:
    """A descriptor that stands for a file or folder; raises ELOOP if there is a link on the way to it, or at its end.

    It gives no right to read, and needs none (where the system has such descriptors).
    """
    folder, name = _open_folder_of(path)
    try:
        place = os.open(name or ".", _PLACE, dir_fd=folder)
    finally:
        os.close(folder)
    if stat.S_ISLNK(os.fstat(place).st_mode):
        os.close(place)
        raise OSError(errno.ELOOP, "it is a link", path)
    return place


def open_plain(path: str | os.PathLike[str]) -> BinaryIO:
    """A plain file, to be read; raises OSError if it is something else, or if there is a link on the way to it."""
    path = os.fspath(path)
    folder, name = _open_folder_of(path)
    try:
        # A pipe is not waited for.
        opened = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _ITSELF, dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is not a plain file", path)
    return os.fdopen(opened, "rb")


def is_plain(path: str) -> bool:
    """Whether it is a plain file that no link leads to. Raises FileNotFoundError."""
    try:
        place = open_place(path)
    except FileNotFoundError:
        raise
    except OSError:
        return False
    try:
        return stat.S_ISREG(os.fstat(place).st_mode)
    finally:
        os.close(place)


def _open_folder_of(path: str) -> tuple[int, str]:
    """The folder that a path ends in, and the name there."""
    *names, last = path.strip("/").split("/")
    if not path.startswith("/") or ".." in (*names, last):
        raise OSError(errno.EINVAL, "the path is not absolute, or leads upwards", path)
    folder = os.open("/", _PLACE | os.O_DIRECTORY)
    for name in names:
        try:
            below = os.open(name or ".", _PLACE | os.O_DIRECTORY, dir_fd=folder)
        except NotADirectoryError as error:
            raise OSError(errno.ELOOP, "a part of the path is a link, or no folder", path) from error
        finally:
            os.close(folder)
        folder = below
    return folder, last
