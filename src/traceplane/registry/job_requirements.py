"""Which Python packages the jobs of a DAG need, and the locks that were made of them.

A job names its own in the DAG file. Otherwise it has those of its entrypoint's module, in a block of inline script
metadata (PEP 723), or else those of the whole DAG. The nearest one counts alone, so jobs of one DAG may need different
versions of a library. The command line reads files and makes the locks; the gateway applies the same rules to what it
received, and refuses a deploy without a lock for what a job needs.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from traceplane.errors import InvalidInput
from traceplane.linux.plain_files import open_plain
from traceplane.model import requirements
from traceplane.model.dag import Dag, Job
from traceplane.model.runtimes import Runtime
from traceplane.registry import code_identity
from traceplane.registry.code_project import Project
from traceplane.registry.spec.job_faults import JobFault

_OPENS, _CLOSES = re.compile(r"# /// ([a-zA-Z0-9-]+)"), "# ///"


def named_files(dag: Dag) -> set[str]:
    """The files with requirements that a DAG file names."""
    named = {dag.requirements_file, *(job.requirements_file for job in dag.jobs)}
    return {path for path in named if path is not None}


def read_files(dag: Dag, folder: Path) -> dict[str, str]:
    """Those files, as they are below the folder of the DAG file. No part of a path may be a link: whoever writes a DAG
    file that others plan would have them read any file of theirs, and look its words up in an index."""
    files = {}
    for path in sorted(named_files(dag)):
        try:
            with open_plain(folder.resolve() / path) as file:
                content = file.read(requirements.MAX_FILE_CHARS + 1)
            files[path] = content.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(
                "requirements.no_file",
                f"the file with requirements cannot be read: {getattr(error, 'strerror', None) or error}",
                value=folder / path,
                next_step="the path is relative to the DAG file, and no part of it may be a link; correct it",
            ) from None
    return files


def with_requirements(
    dag: Dag, runtimes: Mapping[str, Runtime], files: Mapping[str, str], project: Project
) -> Dag:
    """The DAG, in which each job that runs users' code has the requirements that apply to it."""
    common = _listed(dag, files)

    def of_job(job: Job) -> tuple[str, ...]:
        if not code_identity.runs_users_code(job, runtimes):
            return () if job.generated_for is not None else job.requirements  # which `faults` refuses
        if job.requirements or job.requirements_file is not None:
            return _listed(job, files)
        inline = _inline(job, project)
        return common if inline is None else inline

    jobs = tuple(replace(job, requirements=of_job(job)) for job in dag.jobs)
    return replace(dag, jobs=jobs, requirements=())


def faults(dag: Dag, runtimes: Mapping[str, Runtime]) -> Iterator[JobFault]:
    """Jobs that name requirements although a worker imports no code of theirs."""
    for job in dag.jobs:
        names = bool(job.requirements) or job.requirements_file is not None
        if names and job.generated_for is None and not code_identity.runs_users_code(job, runtimes):
            message = (
                f"the operator {job.operator} on {job.runtime} runs no code of yours that could need packages"
            )
            step = "remove requirements, or use the operator python or pyspark"
            yield JobFault("requirements.no_code", (job.name, "requirements"), message, step)


def locks_of_jobs(dag: Dag, locks: Mapping[str, str]) -> dict[str, str]:
    """The lock of each job that needs one, by job. `locks` are by the hash of the requirements."""
    found = {}
    for job in dag.jobs:
        if not job.requirements:
            continue
        if (lock := locks.get(requirements.key_of(job.requirements))) is None:
            raise InvalidInput(
                "requirements.not_locked",
                f"job {job.name} needs packages, and the deploy came without a lock of them",
                value=", ".join(job.requirements)[:200],
                next_step="deploy with the command line or the Python client, which make it",
            )
        try:
            requirements.decode_lock(lock)
        except ValueError as error:
            raise InvalidInput(
                "requirements.not_locked", f"the lock of job {job.name} is invalid: {error}"
            ) from None
        found[job.name] = lock
    return found


def locked_packages(path: str, text: str) -> list[requirements.LockedPackage] | list[str]:
    """What a file with requirements has: those of a lock, or requirements as people write them."""
    if len(text) > requirements.MAX_FILE_CHARS:
        raise _invalid(path, f"it has more than {requirements.MAX_FILE_CHARS} characters")
    try:
        return requirements.read_file(text)
    except ValueError as error:
        raise _invalid(path, str(error)) from None


def _listed(said: Job | Dag, files: Mapping[str, str]) -> tuple[str, ...]:
    """What a job or a DAG names, in the DAG file or in one of its own."""
    path = said.requirements_file
    if path is None:
        return said.requirements
    if path not in files:
        raise InvalidInput(
            "requirements.no_file",
            "the deploy came without a file with requirements that the DAG file names",
            value=path,
            next_step="deploy with the command line or the Python client, or send it in requirement_files",
        )
    found = locked_packages(path, files[path])
    return tuple(one if isinstance(one, str) else one.pin for one in found)


def _inline(job: Job, project: Project) -> tuple[str, ...] | None:
    """The block in the module of the job's entrypoint; None if it has none."""
    module = code_identity.module_of(job)
    text = project.text_of(module) if module is not None else None
    blocks = [] if text is None else [content for kind, content in _blocks(text) if kind == "script"]
    if not blocks:
        return None
    shown = f"the inline metadata of module {module}"
    if len(blocks) > 1:
        raise _invalid(shown, "there are several blocks named script")
    try:
        metadata = tomllib.loads("\n".join(line[2:] for line in blocks[0]))
    except tomllib.TOMLDecodeError as error:
        raise _invalid(shown, f"it is not valid TOML: {error}") from None
    listed = metadata.get("dependencies", [])
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise _invalid(shown, "dependencies is not a list of texts")
    for one in listed:
        if not requirements.is_requirement(one.strip()):
            raise _invalid(shown, f"{one[:100]!r} is not a requirement; {requirements.FORM}")
    return tuple(one.strip() for one in listed)


def _blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """Blocks of inline metadata with their types, as PEP 723 defines them: the lines of a comment from the first one
    that opens a block to the last one that closes it. Its regular expression takes minutes for a hostile module."""
    lines = text.replace("\r\n", "\n").split("\n")
    for is_comment, group in itertools.groupby(lines, lambda line: line == "#" or line.startswith("# ")):
        comment = list(group) if is_comment else []
        end = max((n for n, line in enumerate(comment) if line == _CLOSES), default=0)
        for start in range(end - 1):
            if (opens := _OPENS.fullmatch(comment[start])) is not None:
                yield opens[1], comment[start + 1 : end]
                break


def _invalid(where: str, why: str) -> InvalidInput:
    return InvalidInput(
        "requirements.invalid",
        f"requirements cannot be used: {why}",
        value=where,
        next_step="name packages of an index and their versions; addresses, paths and options are not accepted",
    )
