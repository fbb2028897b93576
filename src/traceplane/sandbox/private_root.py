"""A private file system for each task: the interpreter, its code, its inputs, its folders.

The fork server makes a template once, and each slot builds a small tmpfs root from it. A child copies
the slot's mounts while it still waits for work, binds the task's paths into its copy when the work
arrives, and enters it; afterwards the slot removes the empty mount points. Paths keep their names, so
a path in a payload or a traceback means the same on both sides; only the temporary folder moves, to
/tmp. Everything is read-only except /tmp, the output folders and /dev/null. Folders above a bound path
are new and searchable, so an interpreter below a private home directory still works for an
unprivileged uid.

A child that cannot build its root fails before any user code is loaded.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from traceplane.linux import kernel, plain_files

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = (
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/nsswitch.conf",
    "/etc/localtime",
    "/etc/ld.so.cache",
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
)
SYSTEM_SETTINGS = (
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/etc/alternatives"),
    *sorted(glob.glob("/etc/java*")),
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
TEMP = "/tmp"  # noqa: S108 -- of the task alone
_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV
_MOST_LINKS = 40


@functools.cache
def interpreter_folders() -> tuple[str, ...]:
    """The folders that Python and the platform's own package are loaded from; first called by the fork server."""
    package = Path(__file__).resolve().parents[1]
    folders = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path, str(package)}
    real = {os.path.realpath(path) for path in folders if path and os.path.exists(path)}
    return tuple(outermost({*real, *(path for path in folders if path and os.path.isdir(path))} - {"/"}))


def links_on_the_way(path: str) -> list[str]:
    """Every link on the way from a path to its target: a virtual environment's Python is often a link to a link."""
    links: list[str] = []
    parts, folder = path.split("/"), "/"
    while parts and len(links) < _MOST_LINKS:
        name = parts.pop(0)
        entry = os.path.normpath(os.path.join(folder, name))
        if os.path.islink(entry):
            links.append(entry)
            target = os.readlink(entry)
            parts = target.split("/") + parts
            folder = "/" if target.startswith("/") else folder
        else:
            folder = entry
    return links


def outermost(paths: Iterable[str]) -> list[str]:
    """The paths that are not below another one."""
    kept: list[str] = []
    for path in sorted(paths, key=lambda p: p.split("/")):  # the paths below a folder come right after it
        if not kept or not is_within(path, kept[-1]):
            kept.append(path)
    return kept


@contextlib.contextmanager
def _itself(path: str) -> Iterator[str]:
    """A path that keeps leading to the current file or folder, which is not a link, even if it is replaced."""
    place = plain_files.open_place(path)
    try:
        yield f"/proc/self/fd/{place}"
    finally:
        os.close(place)


def is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _uncovered(paths: Iterable[str], covered: Iterable[str]) -> list[str]:
    covered = list(covered)
    return [path for path in outermost(paths) if not any(is_within(path, folder) for folder in covered)]


class Template:
    """The parts that are the same for every task, created once in the fork server's mount namespace."""

    def __init__(self, folder: str, uids: Iterable[int]) -> None:
        self._folder = os.path.join(folder, "template")
        self._root = os.path.join(folder, "root")
        for path in (self._folder, self._root):
            os.makedirs(path, exist_ok=True)
        kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("tmpfs", self._folder, "tmpfs", kernel.MS_NOSUID, "size=4m,mode=755")
        self._make_devices()
        self._make_etc(uids)
        folders = _uncovered(interpreter_folders(), SYSTEM_FOLDERS)
        self._bind_system([path for path in folders if not is_within(path, TEMP)])
        links = _uncovered(links_on_the_way(sys.executable), (*SYSTEM_FOLDERS, *folders))
        self._links += [path for path in links if not is_within(path, TEMP)]
        self._folders_below_temp = [path for path in folders if is_within(path, TEMP) and path != TEMP]
        self._links_below_temp = {path: os.readlink(path) for path in links if is_within(path, TEMP)}
        kernel.make_mount_read_only(self._folder)

    def _bind_system(self, folders: Iterable[str]) -> None:
        self._links = [path for path in SYSTEM_FOLDERS if os.path.islink(path)]
        self._folders = [path for path in SYSTEM_FOLDERS if os.path.isdir(path) and path not in self._links]
        self._folders += folders
        for path in self._folders:
            os.makedirs(self._folder + path)
            kernel.bind(path, self._folder + path)

    def _make_devices(self) -> None:
        devices = self._folder + "/dev"
        os.mkdir(devices)
        for device in DEVICES:
            Path(self._folder + device).touch()
            kernel.bind(device, self._folder + device)
        for name, target in (("fd", "/proc/self/fd"), ("shm", TEMP)):
            os.symlink(target, f"{devices}/{name}")

    def _make_etc(self, uids: Iterable[int]) -> None:
        os.mkdir(self._folder + "/etc")
        for path in SYSTEM_FILES:
            if os.path.isfile(path):
                shutil.copyfile(path, self._folder + path)
        named = sorted({*uids, os.geteuid()} - {0})  # Java needs its user to have a name
        users = "".join(f"operator{n}:x:{uid}:{uid}::{TEMP}:/bin/false\n" for n, uid in enumerate(named))
        Path(self._folder + "/etc/passwd").write_text("root:x:0:0::/:/bin/false\n" + users)
        for path in SYSTEM_SETTINGS:
            if os.path.isdir(path):
                os.mkdir(self._folder + path)
                kernel.bind(path, self._folder + path)

    def raise_root(self) -> PrivateRoot:
        """Build the common part of the roots of one slot's tasks, in its own mount namespace."""
        kernel.unshare(kernel.CLONE_NEWNS)
        root = PrivateRoot(self._root, self._folders_below_temp, self._links_below_temp)
        for path in self._links:
            os.makedirs(os.path.dirname(root.at(path)), exist_ok=True)
            os.symlink(os.readlink(path), root.at(path))
        for path in (*self._folders, "/etc", "/dev"):
            root.show(self._folder + path, path, read_only=False)  # the template is read-only already
        root.mount_proc()
        os.mkdir(root.at(TEMP))
        root.settle()
        return root


class PrivateRoot:
    """A slot's root; in a child, that of its task."""

    def __init__(
        self,
        path: str,
        folders_below_temp: Iterable[str] = (),
        links_below_temp: Mapping[str, str] | None = None,
    ) -> None:
        self._path = path
        self._folders_below_temp = list(folders_below_temp)
        self._links_below_temp = dict(links_below_temp or {})
        self._shown: list[str] = []
        self._permanent: set[str] = set()
        kernel.mount("tmpfs", path, "tmpfs", _FLAGS, "size=16m,mode=755")

    def settle(self) -> None:
        """Make the current content common to all tasks."""
        self._permanent = {path for path, _ in self._own_entries()}

    def sweep(self) -> None:
        """Remove the mount points of the last task; here, outside its namespace, they are empty."""
        for path, is_folder in self._own_entries():
            if path not in self._permanent:
                os.rmdir(path) if is_folder else os.unlink(path)

    def _own_entries(self) -> list[tuple[str, bool]]:
        """Everything in the root itself rather than in something mounted on it, children first."""
        own_entries: list[tuple[str, bool]] = []
        device = os.stat(self._path).st_dev
        pending = [self._path]
        while pending:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    own_entries.append((entry.path, is_folder))
                    if is_folder and entry.stat(follow_symlinks=False).st_dev == device:
                        pending.append(entry.path)
        return own_entries[::-1]

    def open_from_outside(self, alias: str, folders: Iterable[str]) -> Grants:
        """Allows showing more below these folders while the root is in use; called before it is entered."""
        aside = alias + "-aside"
        for path in (alias, aside):
            os.makedirs(path, exist_ok=True)
        kernel.mount(self._path, alias, None, kernel.MS_BIND)
        for folder in folders:
            os.makedirs(alias + folder, exist_ok=True)
        return Grants(self._path, alias, aside)

    def copy_for_task(self) -> None:
        """Called in the child: from here on its mounts are its own."""
        kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)

    def at(self, path: str) -> str:
        return self._path + path

    def show(self, source: str, path: str, *, read_only: bool) -> None:
        target = self.at(path)
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
        elif not os.path.exists(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        kernel.bind(source, target)
        if read_only:
            kernel.make_mount_read_only(target)
        self._shown.append(path)

    def mount_proc(self) -> None:
        """A /proc with only this task's processes; left empty where the kernel refuses."""
        os.mkdir(self.at("/proc"), 0o755)
        flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC | kernel.MS_RDONLY
        try:
            kernel.mount("proc", self.at("/proc"), "proc", flags, "hidepid=2")
        except PermissionError:
            return

    def enter(
        self,
        *,
        readable: Iterable[str],
        writable: Iterable[str],
        temp: str,
        inputs: Iterable[str] = (),
        temp_at: str = TEMP,
        hidden: Iterable[str] = (),
    ) -> None:
        """Bind the task's own paths and make the root the only tree this process can see.

        `inputs` are readable too; raises ELOOP if one of them is a link.
        """
        untrusted = set(inputs)
        shown = list(self._shown)
        self.show(temp, temp_at, read_only=False)
        # The task's own /tmp hides paths below /tmp; they are shown again, at mount points inside it.
        paths = [*self._folders_below_temp, *readable, *untrusted]
        for path in _uncovered(paths, shown):
            self._show_to_read(path, links=path not in untrusted)
        self._link_below_temp()
        masks = [path for path in hidden if self._mask(path)]
        for path in outermost(p for p in paths if any(is_within(p, mask) for mask in masks)):
            self._show_to_read(path, links=path not in untrusted)
        for path in writable:
            self.show(path, path, read_only=False)
        for path in ("", *masks):
            self._close(self.at(path))
        # chroot rather than pivot_root: unmounting the old tree waits for every processor, and a
        # process without capabilities, descriptors or the chroot call cannot leave.
        os.chroot(self._path)
        os.chdir("/")

    def _link_below_temp(self) -> None:
        """The links to Python that the task's own /tmp hides. Folders that are shown come first: no path to them may
        lead through a link of the host."""
        for path, target in self._links_below_temp.items():
            if not os.path.lexists(self.at(path)):
                os.makedirs(os.path.dirname(self.at(path)), exist_ok=True)
                os.symlink(target, self.at(path))

    def _show_to_read(self, path: str, *, links: bool) -> None:
        if links:
            self.show(path, path, read_only=True)
            return
        with _itself(path) as source:
            self.show(source, path, read_only=True)

    def _mask(self, path: str) -> bool:
        """Cover a path that one of the shown folders would reveal; whether that was needed."""
        if path in self._shown or not any(
            is_within(path, folder) for folder in self._shown if folder != TEMP
        ):
            return False
        if os.path.isdir(self.at(path)):
            kernel.mount("tmpfs", self.at(path), "tmpfs", _FLAGS, "size=16m,mode=755")
            return True
        if os.path.exists(self.at(path)):
            kernel.bind(self.at("/dev/null"), self.at(path))
        return False

    def _close(self, mount_point: str) -> None:
        kernel.mount(None, mount_point, None, kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | _FLAGS)


class Grants:
    """Folders shown temporarily in a root that is in use: folders to read, and folders in them to write.

    The root itself is read-only; mount points are created through another mount of it (`alias`), which processes
    inside cannot see. Nor can they see a mount before it is fully restricted (`aside`).
    """

    def __init__(self, root: str, alias: str, aside: str) -> None:
        self._root = root
        self._alias = alias
        self._aside = aside
        self._readers: Counter[str] = Counter()

    def show(self, readable: Iterable[str], writable: Iterable[str]) -> None:
        """Each writable folder is inside one of the readable ones."""
        shown: list[str] = []
        opened: list[str] = []
        try:
            for folder in readable:
                if not self._readers[folder]:
                    os.makedirs(self._alias + folder, exist_ok=True)
                    self._mount(folder, kernel.make_mount_read_only)
                self._readers[folder] += 1
                shown.append(folder)
            for folder in writable:
                self._mount(folder, kernel.make_mount_harmless)
                opened.append(folder)
        except OSError:
            self.hide(shown, opened)
            raise

    def _mount(self, folder: str, restrict: Callable[[str], None]) -> None:
        with _itself(folder) as source:
            kernel.bind(source, self._aside)
        try:
            restrict(self._aside)
            kernel.move(self._aside, self._root + folder)
        except OSError:
            kernel.detach(self._aside)
            raise

    def hide(self, readable: Iterable[str], writable: Iterable[str], *, sealed: bool = False) -> bool:
        """With `sealed`, whether the writable folders can no longer be written to, not even through open files."""
        quiet = True
        for folder in writable:
            try:
                if sealed:
                    kernel.make_mount_read_only(self._root + folder)
            except FileNotFoundError:
                continue  # an output without files: its folder was removed, and the mount with it
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                quiet = False
            with contextlib.suppress(OSError):
                kernel.detach(self._root + folder)
        for folder in readable:
            if not self._readers[folder]:
                continue  # it could not be shown
            self._readers[folder] -= 1
            if not self._readers[folder]:
                del self._readers[folder]
                with contextlib.suppress(OSError):
                    kernel.detach(self._root + folder)
        return quiet
