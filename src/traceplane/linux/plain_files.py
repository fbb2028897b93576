"""Opens files where a hostile process may have put a link in the path.

Operators and Spark wrote the files of the object store. A process with more rights than they have must open them here:
no part of the path may be a link, and the checks apply to the file that was opened.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

_ITSELF = os.O_NOFOLLOW | os.O_CLOEXEC
_PLACE = getattr(os, "O_PATH", os.O_RDONLY) | _ITSELF


def open_place(path: str) -> int:
    """A descriptor for a file or folder; raises ELOOP if the path contains or ends in a link.

    It grants no right to read, and needs none (where the system has such descriptors).
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
    """Opens a plain file for reading; raises OSError if it is something else, or if the path contains a link."""
    path = os.fspath(path)
    folder, name = _open_folder_of(path)
    try:
        # Does not wait for a pipe.
        opened = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _ITSELF, dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is not a plain file", path)
    return os.fdopen(opened, "rb")


def is_plain(path: str) -> bool:
    """Whether it is a plain file, reached without a link. Raises FileNotFoundError."""
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
    """The parent folder of a path, and the name in it."""
    *names, last = path.strip("/").split("/")
    if not path.startswith("/") or ".." in (*names, last):
        raise OSError(errno.EINVAL, "the path is not absolute, or leads upwards", path)
    folder = os.open("/", _PLACE | os.O_DIRECTORY)
    for name in names:
        try:
            below = os.open(name or ".", _PLACE | os.O_DIRECTORY, dir_fd=folder)
        except NotADirectoryError as error:
            raise OSError(errno.ELOOP, "a part of the path is a link or not a folder", path) from error
        finally:
            os.close(folder)
        folder = below
    return folder, last
