"""Where the object store's files are on this machine, and which of them the tasks of a job may reach."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from traceplane.adapters.object_cache import ObjectCache
from traceplane.adapters.object_store import StoredFile
from traceplane.sandbox.assignment import Reuse
from traceplane.wire.tasks import ClaimedTask, InputFile, JobPayload
from traceplane.worker.direct_store import DirectStore

_READABLE_BY_OTHERS = 0o005


@dataclass(frozen=True, slots=True)
class StoreOnDisk:
    """Below these folders, files have the same paths as in the store."""

    inputs: Path
    outputs: Path
    cache: ObjectCache | None = None
    """Unset: the store is a folder, and files are read and written in place."""
    direct: DirectStore | None = None
    """Set: Spark's executors read and write the bucket themselves, and no file of a task passes through this machine
    unless the platform or the operator's own process makes it."""

    def input_paths(self, files: Iterable[InputFile]) -> tuple[str, ...]:
        return tuple(str(self.inputs / file.path) for file in files)

    def readable_generations(self, task: ClaimedTask) -> set[Path]:
        """Folders of the generations that a task reads, including those it appends to."""
        return {
            *(_generation(self.inputs, file.path) for file in granted_files(task)),
            *(_generation(self.outputs, prefix) for prefix in task.write_prefixes),
        }


def granted_files(task: ClaimedTask) -> list[StoredFile]:
    """Every file that the task may read, once."""
    lists = (*task.input_files, *task.output_files)
    sizes = {file.path: file.bytes for files in lists for file in files}
    return [StoredFile(path, size) for path, size in sizes.items()]


def _generation(store: Path, path: str) -> Path:
    """The generation's folder of a file or prefix: `…/{generation}/staging/…`."""
    return store / path.partition("/staging/")[0]


def reuse_of(job: JobPayload, store: StoreOnDisk) -> Reuse | None:
    """What all tasks of one revision of a job may reach; None if operators cannot traverse the folders."""
    readable = [store.inputs / i.storage for i in job.inputs]
    if (
        store.cache is not None
    ):  # an append also reads its output's files, which are not below where it writes
        readable += [store.inputs / o.storage for o in job.outputs]
    writable = [store.outputs / o.storage / "staging" for o in job.outputs]
    if not all(_make_passable(folder) for folder in (*readable, *writable)):
        return None
    revision = hashlib.sha256(
        msgspec.json.encode([job.operator, job.config, job.views], order="sorted")
    ).hexdigest()
    return Reuse(key=f"{job.org}/{job.job_id}/{revision}", readable=tuple(readable), writable=tuple(writable))


def _make_passable(folder: Path) -> bool:
    try:
        new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
        if new_folders:
            folder.mkdir(parents=True, exist_ok=True)
            for path in new_folders:  # whatever the umask
                path.chmod(0o755)
        return folder.stat().st_mode & _READABLE_BY_OTHERS == _READABLE_BY_OTHERS
    except OSError:
        return False
