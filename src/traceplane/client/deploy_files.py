"""What a deploy sends: a DAG file, the modules of its jobs and the locks of their packages."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from traceplane.settings import Settings
from traceplane.wire.deploys import DeployRequest


def deploy_request(
    settings: Settings, file: Path, code: Sequence[Path], *, code_on_workers: bool = False
) -> DeployRequest:
    """The request to deploy a file. Problems are raised before anything is sent.

    `code_on_workers`: modules missing from the folders here are on the workers; this is not checked.
    """
    # Imports a SQL parser, which no other call needs.
    from traceplane.registry import code_identity, code_project, job_checks, job_requirements, package_locks
    from traceplane.registry.spec import dag_file

    dag, text = dag_file.load(file, known_runtimes=frozenset(settings.runtimes)), file.read_text()
    folders = tuple(code) or tuple(path for path in settings.worker_code_paths if path.is_dir())
    project = code_project.project_in(folders)
    files = job_requirements.read_files(dag, file.parent)
    dag = job_requirements.with_requirements(dag, settings.runtimes, files, project)
    job_checks.refuse(
        dag,
        settings.runtimes,
        project,
        text,
        str(file),
        is_elsewhere=lambda package: code_on_workers or _is_installed(package),
        no_folder=None if folders else ", ".join(map(str, settings.worker_code_paths)),
        knows_packages=False,
    )
    modules = code_identity.collect(
        dag, settings.runtimes, folders, is_installed=_is_installed, all_are_there=not code_on_workers
    )
    locks = package_locks.make(dag, files, file.parent)
    return DeployRequest(text, str(file), code=modules or None, requirement_files=files, locks=locks)


def _is_installed(package: str) -> bool:
    """Modules in the current folder do not count, although Python may look there too."""
    elsewhere = [path for path in sys.path if Path(path or ".").resolve() != Path.cwd()]
    return PathFinder.find_spec(package, elsewhere) is not None
