"""File sources: the fields of `source`, and the job that stands for the listing.

A source with neither an operator nor a `format` is one job, whose dataset lists the files. Any other is deployed as
two: `NAME__files`, the source, whose dataset lists the files, and `NAME`, which reads those of a partition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import msgspec
import yaml

from traceplane.file_sources.config import DEFAULT_SETTLE_SECONDS, FilesConfig, Format
from traceplane.file_sources.pattern import EXAMPLES, BadPattern, Pattern
from traceplane.file_sources.specs import FILES
from traceplane.model import dag as model
from traceplane.model import file_places
from traceplane.model.dag import Input, Job, Output
from traceplane.model.partitions import Partitions
from traceplane.registry.spec import yaml_reader as read
from traceplane.registry.spec.yaml_reader import Fields, Problems, YamlMap

SUFFIX = "__files"
_LONGEST_NAME = 63


def _settle(problems: Problems, node: yaml.Node) -> float:
    return 0.0 if read.scalar(problems, node) == 0 else float(read.duration(problems, node))


SOURCE: Fields = {
    "pattern": read.text,
    "every": read.duration,
    "settle": _settle,
    "format": read.choice(Format),
}
"""Those that only a file source has; `path` is a field of webhook sources too."""


def is_file_source(job: YamlMap) -> bool:
    return bool(job.get("source", "kind") == model.SourceKind.FILE)


def is_read(job: YamlMap) -> bool:
    """Whether a job reads the files of its source, rather than only list them."""
    return is_file_source(job) and not (job.lacks("operator") and job.get("source").lacks("format"))


def is_listing(job: Job) -> bool:
    return job.operator == FILES


def files_dataset(output: str) -> str:
    """The list of a source's files, by the first dataset that is made from them: a renamed job continues it."""
    return f"{output}#files"


# Checks -------------------------------------------------------------------------------------------------


def check(problems: Problems, jobs: list[YamlMap], top: YamlMap) -> None:
    names = {job.get("name") for job in jobs}
    for job in jobs:
        source: YamlMap | None = job.get("source")
        if source is None:
            continue
        if not is_file_source(job):
            for name in SOURCE:
                if name in source.nodes:
                    message = f"only a file source has {name}"
                    problems.add(
                        "spec.field_needs_file", source.at(name), message, "set kind: file, or remove it"
                    )
            continue
        _check_source(problems, source)
        if not job.lacks("operator") and not source.lacks("format"):
            message = "the operator of the job reads the files, in whatever format"
            problems.add("spec.format_without_use", source.at("format"), message, "remove format or operator")
        name = f"{job.get('name') or ''}{SUFFIX}"
        if is_read(job) and (name in names or len(name) > _LONGEST_NAME):
            fault = "which is taken" if name in names else f"longer than {_LONGEST_NAME} characters"
            message = f"its list of files needs the job name {name[:200]!r}, {fault}"
            problems.add("spec.bad_name", job.at("name"), message, "rename the job")
        if not is_read(job):
            _check_list(problems, job, top)


def _check_source(problems: Problems, source: YamlMap) -> None:
    for name, example in (("path", "/data/in"), ("pattern", '"orders_{YYYY}-{MM}-{DD}.csv"')):
        if source.lacks(name):
            problems.add(
                "spec.missing_field", source.node, f"the field {name!r} is missing", f"add {name}: {example}"
            )
    path = source.get("path")
    if path and (problem := file_places.problem(path)) is not None:
        message = f"{path[:100]!r} is no place of files: {problem}"
        problems.add("spec.bad_path", source.at("path"), message, "write /data/in or s3://bucket/prefix")


def _check_list(problems: Problems, job: YamlMap, top: YamlMap) -> None:
    """The dataset of a source that only lists has columns of its own."""
    for output in job.get("outputs") or ():
        dataset: YamlMap | None = (top.get("datasets") or {}).get(output.get("dataset"))
        for name in ("columns", "storage", "write_mode", "position") if dataset is not None else ():
            if name in dataset.nodes:  # type: ignore[union-attr]
                message = f"the source lists files, so its dataset has {name} of its own"
                suggestion = "remove it; or add format: … or an operator to the source, to get rows"
                problems.add("spec.list_of_files", dataset.at(name), message, suggestion)  # type: ignore[union-attr]


def check_patterns(
    problems: Problems, jobs: list[YamlMap], known: Mapping[str, Partitions], unknown: Collection[str]
) -> None:
    """A name says which partition of the dataset its file belongs to.

    `unknown`: datasets whose partitions are not known here.
    """
    for job in jobs:
        pattern: str | None = job.get("source", "pattern") if is_file_source(job) else None
        outputs = job.get("outputs")
        if not pattern or not outputs or outputs[0].get("dataset") in unknown:
            continue
        by = known.get(outputs[0].get("dataset"), Partitions()).by
        try:
            Pattern(pattern, by)
        except BadPattern as error:
            message = f"{pattern[:100]!r}: {error}"
            problems.add(
                "spec.bad_pattern", job.get("source").at("pattern"), message, f'write "{EXAMPLES[by]}"'
            )


# Jobs ---------------------------------------------------------------------------------------------------


def with_listing(record: YamlMap, job: Job) -> list[Job]:
    """A job of a file source as it is deployed: what stands for the listing and, behind it, what reads the files."""
    if not is_file_source(record):
        return [job]
    config = msgspec.to_builtins(_config(record.get("source")))
    if not is_read(record):
        return [replace(job, operator=FILES, config=config)]
    dataset = files_dataset(job.outputs[0].dataset_id)
    # Files are announced whatever waits behind them.
    unmetered = replace(job.execution, max_concurrency=None, max_queue_depth=None, max_queue_age_seconds=None)
    listing = Job(
        name=f"{job.name}{SUFFIX}",
        activation=model.Activation.SOURCE,
        runtime="dispatcher",
        operator=FILES,
        config=config,
        inputs=(),
        outputs=(Output("files", dataset),),
        execution_strategy=model.ExecutionStrategy.PER_UPDATE,
        update_strategy=model.UpdateStrategy.REPLACE,
        source=job.source,
        execution=unmetered,
        generated_for=job.name,
    )
    return [
        listing,
        replace(job, activation=model.Activation.REACTIVE, source=None, inputs=(Input("files", dataset),)),
    ]


def _config(source: YamlMap) -> FilesConfig:
    path: str = source.get("path")
    settle = source.get("settle")
    if settle is None:
        settle = 0.0 if file_places.bucket_and_prefix(path) else DEFAULT_SETTLE_SECONDS
    every = {} if source.get("every") is None else {"every_seconds": source.get("every")}
    return FilesConfig(
        path=path.rstrip("/") or "/", pattern=source.get("pattern"), settle_seconds=settle, **every
    )
