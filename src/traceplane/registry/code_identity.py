"""Which of the user's modules a job runs, and a hash of their code.

Starting from a job's entrypoint, imports are followed through the project: the modules on the code paths, with the
`__init__` of every package on the way. Anything else (the standard library, installed packages) is not followed and
does not count. Each module is reduced to its syntax tree without positions, comments, formatting and docstrings, so
the hash changes only if the module's behaviour may. Dynamic imports (`importlib.import_module`) are not seen.

The command line reads folders (`collect`) and reports problems before anything is sent. The gateway computes the
hashes itself from the files it received (`identify`), so it never has to trust a caller's hash.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from traceplane.errors import InvalidInput
from traceplane.model import code_bundle
from traceplane.model.dag import Dag, Job
from traceplane.model.near_names import near
from traceplane.model.runtimes import Driver, Runtime
from traceplane.operators import catalog
from traceplane.registry.code_project import Project, check_size, missing_module, project_in, project_sent
from traceplane.registry.spec.job_faults import JobFault

_ENTRYPOINT = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class DeployedCode:
    """The code sent with a deploy: a bundle, and the code hash of each job that runs from it."""

    bundle_hash: str
    content: str
    hashes: Mapping[str, str]


def faults(
    dag: Dag,
    runtimes: Mapping[str, Runtime],
    project: Project,
    *,
    is_elsewhere: Callable[[str], bool],
    no_folder: str | None = None,
) -> Iterator[JobFault]:
    """Entrypoints that do not exist. `is_elsewhere` says whether workers have a package from outside the project;
    `no_folder` is the code folder if it does not exist.

    Modules are read, not run, so a name is reported as missing only if nothing in its module could define it.
    """
    for job in dag.jobs:
        if (field := _code_field(job, runtimes)) is None:
            continue
        at, entrypoint = (job.name, "config", field), job.config.get(field)
        if entrypoint is None:
            step = f"add {field}: module:function"
            yield JobFault("code.no_entrypoint", at, f"the field config.{field} is missing", step)
            continue
        if (match := _ENTRYPOINT.fullmatch(str(entrypoint))) is None:
            message = f"{str(entrypoint)[:100]!r} is not of the form package.module:function"
            yield JobFault("code.bad_entrypoint", at, message)
            continue
        module, function = match[1], match[2]
        if project.has(module):
            yield from _entrypoint_faults(project, at, module, function)
        elif module.partition(".")[0] in sys.stdlib_module_names:
            message = f"module {module!r} belongs to Python, which has no operators"
            step = near(module, project.names()) or "name the module that has the function"
            yield JobFault("code.module_missing", at, message, step)
        elif job.requirements or is_elsewhere(module.partition(".")[0]):
            continue  # a package that the job needs may have it
        elif no_folder is not None:
            message = f"module {module!r} would be in the code folder {no_folder!r}, which does not exist"
            step = "create the folder, or pass the one that has the module with --code"
            yield JobFault("code.no_folder", at, message, step)
        else:
            message = f"there is no module {module!r} in the code folders, and no such package is installed"
            step = near(module, project.names()) or "pass the folder that has it with --code"
            yield JobFault("code.module_missing", at, message, step)


def _entrypoint_faults(
    project: Project, at: tuple[str, ...], module: str, function: str
) -> Iterator[JobFault]:
    names = project.names_of(module)
    if names is None:
        message = f"there is no module {module!r} in the code folders"
        yield JobFault(
            "code.module_missing", at, message, near(module, project.names(module.rpartition(".")[0]))
        )
    elif function not in names.bound and not names.may_be_more:
        message = f"module {module!r} has no function {function!r}"
        yield JobFault("code.function_missing", at, message, near(function, names.bound))


def collect(
    dag: Dag,
    runtimes: Mapping[str, Runtime],
    folders: Sequence[Path],
    *,
    is_installed: Callable[[str], bool],
    all_are_there: bool = True,
) -> dict[str, str]:
    """The sources that the jobs of a DAG need from these folders, by path.

    An entrypoint in an installed package needs none, and neither does one that is elsewhere unless `all_are_there`:
    its job runs the workers' copy. Raises InvalidInput for a module that is missing or not Python, and TooLarge.
    """
    project = project_in(folders)
    files: dict[str, str] = {}
    for job, module in _coded_jobs(dag, runtimes):
        if project.has(module):
            files |= {
                path: source.text for path, source in project.modules(module, f"job {job.name}").items()
            }
        elif all_are_there and not job.requirements and not is_installed(module.partition(".")[0]):
            raise missing_module(module, f"the entrypoint of job {job.name}", module)
    check_size(files)
    return files


def identify(
    dag: Dag, runtimes: Mapping[str, Runtime], files: Mapping[str, str] | None
) -> DeployedCode | None:
    """The bundle sent with a deploy. Jobs whose entrypoint is not in it run from the workers' folders."""
    if not files:
        return None
    check_size(files)
    project = project_sent(files)
    hashes = {
        job.name: project.code_hash(module, f"job {job.name}")
        for job, module in _coded_jobs(dag, runtimes)
        if project.has(module)
    }
    content = code_bundle.encode(files)
    return DeployedCode(code_bundle.hash_of(content), content, hashes)


def runs_users_code(job: Job, runtimes: Mapping[str, Runtime]) -> bool:
    """Whether a worker imports a module that the job names."""
    return _code_field(job, runtimes) is not None


def module_of(job: Job) -> str | None:
    """The module of a job's entrypoint; None if it names none."""
    spec = catalog.find(job.operator)
    field = spec.code_field if spec is not None else None
    match = _ENTRYPOINT.fullmatch(str(job.config.get(field, ""))) if field is not None else None
    return match[1] if match is not None else None


def _code_field(job: Job, runtimes: Mapping[str, Runtime]) -> str | None:
    """The config field that names the user's code, if a worker imports it for the job."""
    spec = catalog.find(job.operator) if runtimes[job.runtime].driver is Driver.QUEUE else None
    return spec.code_field if spec is not None else None


def _coded_jobs(dag: Dag, runtimes: Mapping[str, Runtime]) -> Iterator[tuple[Job, str]]:
    """Jobs whose user code is imported by a worker, with the module of their entrypoint."""
    for job in dag.jobs:
        if (field := _code_field(job, runtimes)) is not None:
            match = _ENTRYPOINT.fullmatch(str(job.config.get(field, "")))
            if match is None:
                raise InvalidInput(
                    "code.bad_entrypoint",
                    f"job {job.name}: config.{field} is not of the form package.module:function",
                    value=job.config.get(field),
                )
            yield job, match[1]
