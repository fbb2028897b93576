"""The folders of one run: created before it, sealed after success, removed after failure.

Operator code writes here and is not trusted: a reported file counts only if it is a plain file of
the reported size, with one name, directly in its output's folder, and written by the task's uid.
Anything else in the folder is removed. Files are flushed to disk before they are reported, since the
commit that follows makes them the only copy.

A small file comes with the child's report instead, and the wrapper writes it here: the child never had access to
this file, so the child need not be inspected for it.

If the child is kept for its job's next task, its outputs are taken from it first: the wrapper becomes the
owner of the folder, then of each file, so that nothing can be opened for writing any more. If a file is
still open for writing, the kernel refuses a lease on it. Any doubt about the child raises `StillInUse`, and
the outputs are sealed once it is dead. A child with the wrapper's own uid could take such files back, so it writes to
its own folder (`areas`), and is always ended before its files are moved into place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
from collections.abc import Iterable
from pathlib import Path

from traceplane.errors import PlatformError
from traceplane.runtime.locked_folder import remove_tree
from traceplane.sandbox.assignment import OutputFile, OutputResult, UsedSpark
from traceplane.sandbox.frames import FrameInvalid, OutputInUse, ReportedFile, ReportedOutput

_BLOCK = 512
_INODE_COST = 4096
"""Counted for each entry, so that a flood of empty files is noticed too."""
_TOO_DEEP_TO_COUNT = 1 << 62
_DEEPEST_BESIDE_OTHERS = 32
_FOLDER_ITSELF = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class StillInUse(Exception):
    """The child may still change its outputs, or cannot be trusted with another task."""


class TempFolder:
    """A private folder for one child, created while it still waits for its task if possible."""

    def __init__(self, path: Path, uid: int | None) -> None:
        self._uid = uid
        self._made = False
        self.path = path
        self.mount_points: frozenset[str] = frozenset()
        """Entries created by the wrapper, if it has the uid of the operators."""
        with contextlib.suppress(PlatformError):
            self.make()

    def make(self) -> None:
        if self._made:
            return
        try:
            make_private(self.path, self._uid)
        except OSError as error:
            raise PlatformError(
                "sandbox.folder_in_use",
                f"a temporary folder cannot be created: {error.strerror}",
                value=self.path,
            ) from error
        self._made = True

    def is_empty(self) -> bool:
        try:
            return not self._entries()
        except OSError:
            return False

    def clear(self) -> bool:
        """Remove what a task left while its child is alive; returns whether the folder is empty."""
        try:
            folder = os.open(self.path, _FOLDER_ITSELF)
            try:
                _remove_beside_others(folder, self._entries(), depth=0)
            finally:
                os.close(folder)
            return self.is_empty()
        except OSError:
            return False

    def _entries(self) -> list[str]:
        """All entries but the wrapper's own, which are mount points of folders that are below /tmp outside too."""
        with os.scandir(self.path) as entries:
            if self._uid is None:
                return [entry.name for entry in entries if entry.name not in self.mount_points]
            return [entry.name for entry in entries if entry.stat(follow_symlinks=False).st_uid == self._uid]

    def remove(self) -> None:
        remove_tree(self.path)


def make_private(folder: Path, uid: int | None, spark_uid: int | None = None) -> None:
    """For a task alone, or for the task and its Spark server."""
    os.mkdir(folder, 0o700)
    if uid is not None:
        os.chown(folder, uid, uid if spark_uid is None else spark_uid)
        if spark_uid is not None:
            os.chmod(folder, 0o770)  # noqa: S103 -- Spark writes there as another user


def _remove_if_empty(folder: Path) -> bool:
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _remove_beside_others(folder: int, names: Iterable[str], depth: int) -> None:
    """Remove entries while a hostile process may replace them: follows no link, waits for no pipe."""
    if depth > _DEEPEST_BESIDE_OTHERS:
        raise OSError(errno.ELOOP, "too deep")
    for name in names:
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            below = os.open(name, _FOLDER_ITSELF, dir_fd=folder)
            try:
                _remove_beside_others(below, os.listdir(below), depth + 1)
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=folder)


class TaskFolders:
    """`outputs` maps the names of the outputs, in order, to where each is written."""

    def __init__(
        self,
        temp: TempFolder,
        outputs: dict[str, Path],
        uid: int | None,
        spark: UsedSpark | None = None,
        areas: dict[str, Path] | None = None,
    ) -> None:
        self.temp_folder = temp
        self._areas = areas
        self._unwritten: list[tuple[Path, list[ReportedFile]]] = []
        self.left_files = False
        """Whether there were files that did not come with the report."""
        self._uid = uid
        self._spark = spark
        self._spark_uid = spark.uid if spark is not None else None
        self.temp = temp.path
        self.outputs = outputs
        self._made: list[Path] = []
        self._owners = {os.geteuid() if uid is None else uid}
        if self._spark_uid is not None:
            self._owners.add(self._spark_uid)
        if spark is not None and spark.on_cluster:
            self._owners.add(os.geteuid())

    @property
    def for_child(self) -> dict[str, Path]:
        """Where the child writes each output."""
        return self.outputs if self._areas is None else self._areas

    def make(self) -> None:
        """Create the output folders; an existing one must be empty."""
        for folder in self.for_child.values():
            if self._areas is not None and folder.is_dir():
                continue  # an earlier task of the child left it empty
            try:
                self._make_output(folder)
            except OSError as error:
                raise PlatformError(
                    "sandbox.folder_in_use",
                    f"an output folder cannot be created: {error.strerror}",
                    value=folder,
                ) from error
            self._made.append(folder)

    def _make_output(self, folder: Path) -> None:
        try:
            make_private(folder, self._uid, self._spark_uid)
        except FileNotFoundError:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.parent.chmod(0o755)  # whatever the umask: a job's child reaches its outputs from above
            make_private(folder, self._uid, self._spark_uid)
        except FileExistsError:
            folder.rmdir()
            make_private(folder, self._uid, self._spark_uid)

    def bytes_used(self) -> int:
        return sum(bytes_below(str(folder)) for folder in (self.temp, *self.for_child.values()))

    def seal_empty(self, written: Iterable[ReportedOutput]) -> bool:
        """A quick `seal` for a task that wrote nothing; returns whether it was one."""
        if any(True for _ in written):
            return False
        if self._areas is not None:
            return all(_is_empty(folder) for folder in self._areas.values())
        return all(_remove_if_empty(folder) for folder in self.outputs.values())

    def seal(
        self, written: Iterable[ReportedOutput], *, child_lives: bool = False
    ) -> tuple[OutputResult, ...]:
        """Check and take over the files that the operator reports. Raises FrameInvalid.

        An output without files leaves no folder. If the child is alive, raises StillInUse if the outputs
        cannot be taken from it. `write_out` writes the files that came with the report.
        """
        self._unwritten = []
        names = list(self.outputs)
        reported = {output.name: output for output in written}
        unknown = reported.keys() - self.outputs.keys()
        if unknown:
            raise FrameInvalid(f"it reports an output that does not exist: {min(unknown)[:100]!r}")
        results = []
        for name, folder in self.outputs.items():
            output = reported.get(name)
            if self._areas is not None and not _is_empty(self._areas[name]):
                if child_lives:
                    raise StillInUse(
                        "it wrote files and has the same uid as the wrapper that would seal them"
                    )
                folder.parent.mkdir(parents=True, exist_ok=True)
                os.rename(self._areas[name], folder)
            files = self._seal_folder(folder, output.files if output else [], child_lives)
            if output is not None:
                results.append(_result(names.index(name), output, files))
        return tuple(results)

    def _seal_folder(
        self, folder: Path, files: list[ReportedFile], child_lives: bool
    ) -> tuple[OutputFile, ...]:
        stored = [file for file in files if file.stored]
        files = [file for file in files if not file.stored]
        already = tuple(
            OutputFile(str(folder / file.name), file.rows, file.bytes, file.statistics, stored=True)
            for file in stored
        )
        if not files and _remove_if_empty(folder):
            return already
        lie_there = [file for file in files if file.content is None]
        if not lie_there and self._areas is not None and not folder.exists():
            _make_readable(folder)
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            _take_over(directory, 0o755)
            others = _others(folder, {file.name for file in lie_there})
            if others and child_lives:
                raise StillInUse("there are files that it does not report")
            for path in others:
                remove_tree(path)
            self.left_files = self.left_files or bool(lie_there)
            for file in lie_there:
                self._seal_file(directory, file, child_lives)
            if lie_there:
                os.fsync(directory)
        finally:
            os.close(directory)
        if len(lie_there) < len(files):
            self._unwritten.append((folder, [file for file in files if file.content is not None]))
        return already + tuple(
            OutputFile(str(folder / file.name), file.rows, file.bytes, file.statistics) for file in files
        )

    def _seal_file(self, directory: int, file: ReportedFile, child_lives: bool) -> None:
        try:
            fd = os.open(file.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        except OSError as error:
            raise FrameInvalid(f"it reports a file that cannot be opened: {file.name!r}") from error
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_uid not in self._owners:
                raise FrameInvalid(f"it reports something that is not a plain file of its own: {file.name!r}")
            if child_lives:
                self._owners.add(os.geteuid())  # in case it has to be sealed a second time
            _take_over(fd, 0o444)
            if child_lives and _may_be_written(fd):
                raise StillInUse("a reported file is still open for writing")
            # The server stays alive, whatever the child does.
            if self._spark is not None and _may_be_written(fd):
                raise OutputInUse(f"Spark still has {file.name!r} open for writing")
            size = os.fstat(fd).st_size
            if size != file.bytes:
                raise FrameInvalid(f"{file.name!r} has {size} bytes, not the reported {file.bytes}")
            os.fsync(fd)
        finally:
            os.close(fd)

    def accept(self, written: Iterable[ReportedOutput]) -> tuple[OutputResult, ...] | None:
        """`seal` for outputs that came with the report, without reading any folder; None if there are more."""
        names = list(self.outputs)
        results: list[OutputResult] = []
        unwritten: list[tuple[Path, list[ReportedFile]]] = []
        for output in written:
            if output.name not in self.outputs or any(file.content is None for file in output.files):
                return None
            if any(result.name == output.name for result in results):
                return None
            folder = self.outputs[output.name]
            files = tuple(
                OutputFile(f"{folder}/{file.name}", file.rows, file.bytes, file.statistics)
                for file in output.files
            )
            results.append(_result(names.index(output.name), output, files))
            if files:
                unwritten.append((folder, output.files))
        self._unwritten = unwritten
        return tuple(results)

    @property
    def to_be_written(self) -> bool:
        return bool(self._unwritten)

    def write_out(self) -> None:
        """Write the files that came with the report, after `seal`. Waits for the disk."""
        for folder, files in self._unwritten:
            _make_readable(folder)
            for file in files:
                fd = os.open(folder / file.name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o444)
                try:
                    os.fchmod(fd, 0o444)  # whatever the umask
                    _write_all(fd, file.content or b"")
                    os.fsync(fd)
                finally:
                    os.close(fd)
            directory = os.open(folder, _FOLDER_ITSELF)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def withdraw(self) -> None:
        """Move the outputs of a failed run out of reach of the slot's next task."""
        if self._areas is not None:
            return  # only this child can reach them
        self._made = [folder for folder in self._made if not _remove_if_empty(folder)]
        for folder in self._made:
            with contextlib.suppress(OSError):
                os.chown(folder, os.geteuid(), os.getegid(), follow_symlinks=False)

    def remove_if_empty(self) -> bool:
        """Remove the private folders of a child that has ended."""
        left = [f for f in (self.temp, *(self._areas or {}).values()) if not _remove_if_empty(f)]
        return not left

    def remove(self, *, outputs: bool) -> None:
        """Remove the private folders of a child that has ended, and the outputs of a failed run."""
        self.temp_folder.remove()
        for folder in (self._areas or {}).values():
            remove_tree(folder)
        if outputs:
            for folder in self._made:
                remove_tree(folder)


def _make_readable(folder: Path) -> None:
    """Whatever the umask, with the mode of a folder that was taken over; its parent belongs to the task."""
    try:
        os.mkdir(folder)
    except FileExistsError:
        return
    except FileNotFoundError:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.parent.chmod(0o755)
        os.mkdir(folder)
    os.chmod(folder, 0o755)  # noqa: S103 -- tasks read it as other users


def _write_all(fd: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]


def _is_empty(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except FileNotFoundError:
        return True


def _take_over(fd: int, mode: int) -> None:
    os.fchown(fd, os.geteuid(), os.getegid())
    os.fchmod(fd, mode)


def _may_be_written(fd: int) -> bool:
    """Whether anyone can still write to the file: through a descriptor, even one in flight, or a mapping.

    The kernel grants a read lease only on a file that nobody has open for writing.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # a broken lease sends a signal; this one is harmless
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return True
    return False


def _others(folder: Path, kept: set[str]) -> list[Path]:
    with os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if entry.name not in kept]


def bytes_below(folder: str) -> int:
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
                return _TOO_DEEP_TO_COUNT  # such deep nesting is an attempt to hide files
    return total


def _result(index: int, output: ReportedOutput, files: tuple[OutputFile, ...]) -> OutputResult:
    columns, broken = tuple(output.columns), tuple(output.broken_checks)
    return OutputResult(index, output.name, files, output.schema_hash or "", columns, broken)
