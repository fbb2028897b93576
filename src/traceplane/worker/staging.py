"""The folders of one run: made before it, sealed after success, removed after failure.

Operator code writes here and is not trusted: a reported file counts only if it is a plain file of
the reported size, with one name, directly in its output's folder, and written by the task's uid.
Whatever else lies there is removed. Files are flushed to disk before they are reported, since the
commit that follows makes them the only copy.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path

from traceplane.errors import PlatformError
from traceplane.worker.assignment import OutputFile, OutputResult
from traceplane.worker.frames import FrameInvalid, WrittenFile, WrittenOutput

_BLOCK = 512
_INODE_COST = 4096
"""Counted for each entry, so that a flood of empty files is seen too."""
_TOO_DEEP_TO_COUNT = 1 << 62


class TempFolder:
    """A private folder for one child, made while it still waits for its task if that is possible."""

    def __init__(self, base: Path, uid: int | None) -> None:
        self._base = base
        self._uid = uid
        self._made = False
        self.path = base / "tmp"
        with contextlib.suppress(PlatformError):
            self.make()

    def make(self) -> None:
        if self._made:
            return
        try:
            self._base.mkdir(exist_ok=True)
            self._base.chmod(0o711)
            make_private(self.path, self._uid)
        except OSError as error:
            raise PlatformError(
                "sandbox.folder_in_use",
                f"a temporary folder cannot be made: {error.strerror}",
                value=self.path,
            ) from error
        self._made = True

    def remove(self) -> None:
        remove_tree(self._base)


def make_private(folder: Path, uid: int | None) -> None:
    folder.mkdir()
    folder.chmod(0o700)
    if uid is not None:
        os.chown(folder, uid, uid)


class TaskFolders:
    """`outputs` maps the names of the outputs, in order, to where each is written."""

    def __init__(self, temp: TempFolder, outputs: dict[str, Path], uid: int | None) -> None:
        self._temp = temp
        self._uid = uid
        self.temp = temp.path
        self.outputs = outputs
        self._made: list[Path] = [temp.path]

    def make(self) -> None:
        """The output folders; one that is there already must be empty."""
        for folder in self.outputs.values():
            try:
                folder.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    folder.rmdir()
                make_private(folder, self._uid)
            except OSError as error:
                raise PlatformError(
                    "sandbox.folder_in_use",
                    f"an output folder cannot be made: {error.strerror}",
                    value=folder,
                ) from error
            self._made.append(folder)

    def bytes_used(self) -> int:
        return sum(_bytes_below(str(folder)) for folder in self._made)

    def seal(self, written: Iterable[WrittenOutput]) -> tuple[OutputResult, ...]:
        """Check and take over what the operator reports to have written. Raises FrameInvalid."""
        names = list(self.outputs)
        reported = {output.name: output for output in written}
        unknown = reported.keys() - self.outputs.keys()
        if unknown:
            raise FrameInvalid(f"it reports an output that does not exist: {sorted(unknown)[0][:100]!r}")
        results = []
        for name, folder in self.outputs.items():
            output = reported.get(name)
            files = self._seal_folder(folder, output.files if output else [])
            if output is not None:
                results.append(OutputResult(names.index(name), name, files, output.schema_hash or ""))
        return tuple(results)

    def _seal_folder(self, folder: Path, files: list[WrittenFile]) -> tuple[OutputFile, ...]:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            _remove_others(folder, {file.name for file in files})
            for file in files:
                self._seal_file(directory, file)
            os.fchown(directory, os.geteuid(), os.getegid())
            os.fchmod(directory, 0o755)
            if files:
                os.fsync(directory)
        finally:
            os.close(directory)
        return tuple(OutputFile(str(folder / file.name), file.rows, file.bytes) for file in files)

    def _seal_file(self, directory: int, file: WrittenFile) -> None:
        try:
            fd = os.open(file.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        except OSError as error:
            raise FrameInvalid(f"it reports a file that cannot be opened: {file.name!r}") from error
        try:
            found = os.fstat(fd)
            owner = os.geteuid() if self._uid is None else self._uid
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_uid != owner:
                raise FrameInvalid(f"it reports something that is not a plain file of its own: {file.name!r}")
            if found.st_size != file.bytes:
                raise FrameInvalid(f"{file.name!r} has {found.st_size} bytes, not the reported {file.bytes}")
            os.fsync(fd)
            os.fchown(fd, os.geteuid(), os.getegid())
            os.fchmod(fd, 0o444)
        finally:
            os.close(fd)

    def remove(self, *, outputs: bool) -> None:
        """The temporary folder in any case; the outputs of a run that failed."""
        self._temp.remove()
        if outputs:
            for folder in self._made:
                remove_tree(folder)


def _remove_others(folder: Path, kept: set[str]) -> None:
    with os.scandir(folder) as entries:
        others = [entry.path for entry in entries if entry.name not in kept]
    for path in others:
        remove_tree(Path(path))


def remove_tree(path: Path) -> None:
    """Remove whatever is there, without following links, however deep."""
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
        else:
            shutil.rmtree(path)
    except (OSError, RecursionError):
        # Deeper than Python recurses, or with longer paths than it may pass; rm copes with both.
        subprocess.run(["rm", "-rf", "--", str(path)], check=False, stderr=subprocess.DEVNULL)


def _bytes_below(folder: str) -> int:
    total = 0
    pending = [folder]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK + _INODE_COST
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return _TOO_DEEP_TO_COUNT  # nobody nests so deep but to hide
    return total
