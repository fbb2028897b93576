"""Makes a lock of the packages that jobs need, where the DAG is deployed from.

Resolving reads the metadata of wheels and runs no code of them. The lock is for the Python of this process and newer
ones, on any system. Packages that the platform itself has loaded (`requirements.SHARED`) keep the versions that they
have here and are left out of the lock; requirements that do not allow these are refused.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from traceplane.errors import InvalidInput, PlatformError
from traceplane.model import requirements
from traceplane.model.dag import Dag
from traceplane.model.requirements import LockedPackage
from traceplane.registry import job_requirements
from traceplane.runtime import uv_command

_RESOLVE_SECONDS = 300.0
_PYTHON = sys.version_info[:2]


def make(dag: Dag, files: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The locks of all requirements of a DAG, by their hashes. uv runs in `folder`, whose settings for it apply.

    Raises InvalidInput for those that cannot be satisfied, and PlatformError if an index cannot be reached.
    """
    given = _given_locks(files)
    locks = {}
    for job in dag.jobs:
        key = requirements.key_of(job.requirements)
        if job.requirements and key not in locks:
            packages = _resolved(job.requirements, folder)
            if key in given:
                packages = _checked(given[key], packages)
            locks[key] = requirements.encode_lock(_PYTHON, packages)
    return locks


def _given_locks(files: Mapping[str, str]) -> dict[str, list[LockedPackage]]:
    """The files that are locks already, by the hash of what they pin."""
    given = {}
    for path, text in files.items():
        found = job_requirements.locked_packages(path, text)
        packages = [one for one in found if not isinstance(one, str)]
        if packages:
            given[requirements.key_of(package.pin for package in packages)] = packages
    return given


def _checked(given: Sequence[LockedPackage], resolved: Sequence[LockedPackage]) -> list[LockedPackage]:
    """A lock that somebody made, used as it is, once it is known to be complete and to name files that exist."""
    named = {(package.name, package.version): set(package.hashes) for package in given}
    for package in resolved:
        hashes = named.get((package.name, package.version))
        if hashes is None:
            why = f"it does not have {package.pin}, which a package in it needs"
        elif hashes.isdisjoint(package.hashes):
            why = f"no wheel of {package.pin} in the index has one of its hashes"
        else:
            continue
        raise InvalidInput(
            "requirements.unsatisfiable",
            f"a lock of requirements cannot be used: {why}",
            value=package.pin,
            next_step="make the lock again",
        )
    return [package for package in given if package.name not in requirements.SHARED]


def _resolved(wanted: Sequence[str], folder: Path) -> list[LockedPackage]:
    shared = _shared_versions()
    done = _compile(wanted, shared, folder)
    if done.returncode == uv_command.UNSATISFIABLE:
        raise _unsatisfiable(wanted, shared, folder, done)
    if done.returncode:
        raise PlatformError(
            "requirements.index_unavailable",
            f"packages cannot be resolved: {uv_command.reason(done.stderr)}",
            value=", ".join(wanted)[:200],
            next_step="check the settings of uv for its indexes, such as UV_DEFAULT_INDEX, and the network",
        )
    found = requirements.read_file(done.stdout.decode())
    packages = [one for one in found if not isinstance(one, str)]
    if len(packages) != len(found):
        raise InvalidInput(
            "requirements.unsatisfiable", "an index has files without a hash", value=", ".join(wanted)[:200]
        )
    return packages


def _shared_versions() -> dict[str, str]:
    """The packages that jobs share with the platform, in the versions that are installed here."""
    versions = {}
    for name in requirements.SHARED:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _compile(
    wanted: Sequence[str], shared: Mapping[str, str], folder: Path
) -> subprocess.CompletedProcess[bytes]:
    """Online, or else with what uv has downloaded before."""
    with tempfile.TemporaryDirectory(prefix="traceplane-lock-") as temp:
        constraints, excluded = Path(temp) / "constraints.txt", Path(temp) / "excluded.txt"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in shared.items()))
        excluded.write_text("traceplane\n")
        command = uv_command.command(
            *("pip", "compile", "-", "--constraints", str(constraints), "--excludes", str(excluded)),
            *("--universal", "--python", sys.executable, "--python-version", ".".join(map(str, _PYTHON))),
            *("--generate-hashes", "--no-header", "--no-annotate", "--quiet", *uv_command.NEVER_BUILD),
            *(word for name in shared for word in ("--no-emit-package", name)),
        )
        done = _run(command, wanted, folder)
        if done.returncode not in (0, uv_command.UNSATISFIABLE):
            offline = _run([*command, "--offline"], wanted, folder)
            return offline if offline.returncode == 0 else done
        return done


def _run(command: Sequence[str], wanted: Sequence[str], folder: Path) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            command,
            input="".join(f"{one}\n" for one in wanted).encode(),
            capture_output=True,
            check=False,
            cwd=folder,
            env=uv_command.environment(),
            timeout=_RESOLVE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise PlatformError(
            "requirements.index_unavailable",
            f"packages could not be resolved within {_RESOLVE_SECONDS:.0f} seconds",
            value=", ".join(wanted)[:200],
            next_step="check the settings of uv for its indexes, and the network",
        ) from None


def _unsatisfiable(
    wanted: Sequence[str],
    shared: Mapping[str, str],
    folder: Path,
    done: subprocess.CompletedProcess[bytes],
) -> InvalidInput:
    for one in wanted:
        name = requirements.package_of(one)
        if name in shared and _compile([one], shared, folder).returncode == uv_command.UNSATISFIABLE:
            return InvalidInput(
                "requirements.shared_package",
                f"Traceplane itself has {name} {shared[name]} loaded in the processes that run operators, and they name"
                " others",
                value=one,
                next_step=f"allow {name} {shared[name]}, or leave it out: operators can import it anyway",
            )
    if _compile(wanted, {}, folder).returncode == 0:
        return InvalidInput(
            "requirements.shared_package",
            "they need another version of a package that Traceplane itself has loaded in the processes that run"
            f" operators: {uv_command.reason(done.stderr)}",
            value=", ".join(wanted)[:200],
            next_step="allow the version that Traceplane has, or choose versions of your packages that do",
        )
    return InvalidInput(
        "requirements.unsatisfiable",
        f"no wheels satisfy them: {uv_command.reason(done.stderr)}",
        value=", ".join(wanted)[:200],
        next_step="correct them; packages without a wheel cannot be used, so build one and put it into an index",
    )
