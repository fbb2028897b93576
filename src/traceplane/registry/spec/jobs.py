"""The jobs of a DAG file: what each reads and writes, the rules between its fields, and the `Job`s built from it.

A job is a `Draft` until the whole file is known to be valid: an input may name the output of a job further down.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from traceplane.file_sources import specs as file_sources
from traceplane.model import dag as model
from traceplane.model.dag import Input, Job, Output
from traceplane.model.edges import OnChange, Read, WaitFor, What
from traceplane.model.near_names import near
from traceplane.registry.spec import files, webhooks
from traceplane.registry.spec.fields import MAX_NAME
from traceplane.registry.spec.yaml_reader import BadValue, Problems, YamlMap

_EXECUTION_PATHS = {
    "priority": ("priority",),
    "scaling_mode": ("scaling", "mode"),
    "max_concurrency": ("scaling", "max_concurrency"),
    "max_queue_depth": ("max_queue_depth",),
    "max_queue_age_seconds": ("max_queue_age",),
    "timeout_seconds": ("timeout",),
    "lease_seconds": ("lease",),
    "max_attempts": ("max_attempts",),
    "retry_base_seconds": ("retry", "base"),
    "retry_max_seconds": ("retry", "max"),
    "network": ("network",),
    "function": ("function",),
    "requires": ("requires",),
    "spark": ("spark",),
    "secrets": ("secrets",),
}


def _reacts(job: YamlMap) -> bool:
    return job.has("activation", "reactive") or "activation" not in job.nodes


def _relays(job: YamlMap) -> bool:
    """A source that relays a signal from outside; the dispatcher does it without running code."""
    return not _reacts(job) and job.get("source", "kind") in ("manual", "webhook", "cron")


def _relays_only(job: YamlMap) -> bool:
    """Whether nothing of a source reads what it relays; deliveries are read by the job that has the source."""
    return _relays(job) and not webhooks.keeps_deliveries(job)


def _needs_operator(job: YamlMap) -> bool:
    return _reacts(job) or job.get("source", "kind") in ("always_on", "pipeline")


def _runs_code(job: YamlMap) -> bool:
    return not (job.lacks("operator") or job.has("operator", "source"))


def _runs_elsewhere(job: YamlMap) -> bool:
    return not (job.lacks("runtime") or job.has("runtime", "dispatcher"))


def _cut_by(job: YamlMap) -> list[str]:
    """What says when a batch ends."""
    batch = job.get("batch")
    return [
        name for name in ("size", "every", "all") if not batch.lacks(name) and batch.get(name) is not False
    ]


_ONLY_CRON = ("schedule", "time_zone", "catch_up", "jitter", "period")
"""The fields of a source that only a cron source has."""


def _has_schedule(job: YamlMap) -> bool:
    return job.get("source") is not None and not job.get("source").lacks("schedule")


def _has_cron_fields(job: YamlMap) -> bool:
    source: YamlMap | None = job.get("source")
    return source is not None and any(not source.lacks(name) for name in _ONLY_CRON)


EVENTS_SUFFIX = "__events"


def runs_for_each_event(job: YamlMap) -> bool:
    """Whether a source relays events to an operator of its own, which is then a job behind it."""
    return _relays_only(job) and _runs_code(job)


def events_dataset(output: str) -> str:
    """What a source with an operator emits, by the first dataset that the operator writes. Not by the name of the job:
    a renamed one continues the same events."""
    return f"{output}#events"


# Each rule: the code, the field to show it at, when it is violated, what is wrong, what to do.
# fmt: off
_RULES: tuple[tuple[str, str, Callable[[YamlMap], bool], str, str], ...] = (
    ("spec.missing_field", "operator", lambda job: job.lacks("operator") and _needs_operator(job),
     "the field 'operator' is missing", "add operator: ..."),
    ("spec.missing_field", "source", lambda job: job.has("activation", "source") and job.lacks("source"),
     "the field 'source' is missing", "add source: { kind: ... }"),
    ("spec.source_needs_activation", "source", lambda job: _reacts(job) and not job.lacks("source"),
     "a reactive job has no source", "add activation: source"),
    ("spec.source_runs_no_code", "runtime",
     lambda job: (_relays_only(job) or (files.is_file_source(job) and not files.is_read(job)))
     and not _runs_code(job) and _runs_elsewhere(job),
     "a manual, webhook, cron or file source without an operator only relays events, which the dispatcher does",
     "add an operator, or remove runtime"),
    ("spec.cron_needs_schedule", "source",
     lambda job: job.get("source", "kind") == "cron" and not _has_schedule(job),
     "a cron source needs a schedule", "add schedule: '*/5 * * * *'"),
    ("spec.schedule_needs_cron", "source",
     lambda job: _has_cron_fields(job) and job.get("source", "kind") not in (None, "cron"),
     f"only a cron source has a {', '.join(_ONLY_CRON[:-1])} or {_ONLY_CRON[-1]}", "set kind: cron, or remove them"),
    ("spec.source_has_inputs", "inputs",
     lambda job: job.has("activation", "source") and not job.lacks("inputs"),
     "a source has no inputs", "remove inputs, or set activation: reactive"),
    ("spec.source_needs_outputs", "outputs",
     lambda job: job.has("activation", "source") and job.lacks("outputs")
     and job.get("source", "kind") != "pipeline",
     "a source needs an output for others to react to", "add outputs: [{ dataset: ... }]"),
    ("spec.pipeline_needs_code", "runtime",
     lambda job: job.get("source", "kind") == "pipeline" and job.has("runtime", "dispatcher"),
     "the dispatcher cannot run pipelines", "set runtime: python or spark"),
    ("spec.reactive_needs_inputs", "inputs", lambda job: _reacts(job) and job.lacks("inputs"),
     "a reactive job needs an input to react to", "add inputs, or set activation: source"),
    ("spec.append_needs_unique_key", "update_strategy",
     lambda job: job.has("update_strategy", "append") and job.lacks("unique_key"),
     "append needs a unique_key to drop duplicates", "add unique_key: [column, ...]"),
    ("spec.bulk_needs_batch", "execution_strategy",
     lambda job: job.has("execution_strategy", "Bulk") and job.lacks("batch"),
     "Bulk needs to know its batches", "add batch: { size: 100 }, { every: 5m } or { all: true }"),
    ("spec.bad_batch", "batch", lambda job: job.get("batch") is not None and len(_cut_by(job)) != 1,
     "a batch is given by one of size, every and all", "write { size: 100 }, { every: 5m } or { all: true }"),
    ("spec.batch_needs_size", "batch",
     lambda job: job.get("batch") is not None and _cut_by(job) in (["every"], ["all"])
     and not (job.get("batch").lacks("finality") and job.get("batch").lacks("max_wait")),
     "finality and max_wait are about batches of a size", "add size, or remove them"),
    ("spec.batch_needs_bulk", "batch",
     lambda job: not job.lacks("batch")
     and (job.lacks("execution_strategy") or job.get("execution_strategy") not in (None, "Bulk")),
     "only a Bulk job has a batch", "set execution_strategy: Bulk, or remove batch"),
    ("spec.bulk_needs_inputs", "execution_strategy",
     lambda job: job.has("execution_strategy", "Bulk") and job.has("activation", "source"),
     "a source has no inputs to batch", "remove execution_strategy and batch"),
    ("spec.per_partition_needs_inputs", "execution_strategy",
     lambda job: job.has("execution_strategy", "PerPartition") and job.has("activation", "source"),
     "a source has no inputs whose scopes could be partitions", "remove execution_strategy"),
)
# fmt: on


@dataclass(slots=True, eq=False)
class Draft:
    """A job that is not yet in the model: its outputs and inputs, each with the record that declares it."""

    record: YamlMap
    name: str
    outputs: list[tuple[Output, YamlMap]] = field(default_factory=list)
    inputs: list[tuple[Input, YamlMap]] = field(default_factory=list)

    def outputs_known(self) -> bool:
        """Whether all outputs are valid; if not, a dataset that seems to be missing may be the invalid one."""
        return self.record.lacks("outputs") or len(self.record.at("outputs").value) == len(self.outputs)


def read_of(item: YamlMap) -> Read:
    """What an input says of how it is read, with the defaults of that way of reading."""
    said = item.get("read")
    what = said if isinstance(said, What) else What.SCOPE
    window: dict[str, int] = said.values if isinstance(said, YamlMap) else {}
    whole = what is not What.SCOPE
    return Read(
        what,
        window.get("before") or 0,
        window.get("after") or 0,
        wait_for=item.get("wait_for") or (WaitFor.NOTHING if whole else WaitFor.ALL),
        on_change=item.get("on_change") or (OnChange.IGNORE if whole else OnChange.RECOMPUTE),
        time_column=item.get("time_column"),
    )


def drafts_of(problems: Problems, top: YamlMap) -> list[Draft]:
    """Every job with its outputs, and its inputs resolved to datasets."""
    drafts = [Draft(job, job.get("name") or "") for job in top.get("jobs") or ()]
    for draft in drafts:
        for item in draft.record.get("outputs") or ():
            if dataset := item.get("dataset"):
                draft.outputs.append((Output(item.get("name") or dataset, dataset), item))
    by_name = {draft.name: draft for draft in reversed(drafts) if draft.name}
    for draft in drafts:
        for item in draft.record.get("inputs") or ():
            try:
                output = _resolve(item, by_name)
            except BadValue as bad:
                problems.add(*bad.details)
                continue
            if output is not None:
                used = Input(
                    item.get("name") or output.name,
                    output.dataset_id,
                    item.get("where") or {},
                    tuple(item.get("columns") or ()),
                    read_of(item),
                )
                draft.inputs.append((used, item))
    return drafts


def _resolve(item: YamlMap, by_name: dict[str, Draft]) -> Output | None:
    """The output that an input's `from` refers to; None if its problem is already recorded."""
    origin: YamlMap | None = item.get("from")
    if origin is None or origin.has_unknown or None in origin.values.values():
        return None
    if origin.nodes.keys() not in ({"dataset"}, {"job"}, {"job", "output"}):
        suggestion = "write { job: ..., output: ... } or { dataset: ... }"
        raise BadValue(
            "spec.bad_from", origin.node, "expected a job and its output, or a dataset", suggestion
        )
    if dataset := origin.get("dataset"):
        return Output(dataset, dataset)
    name, output_name = origin.get("job"), origin.get("output")
    if (job := by_name.get(name)) is None:
        raise BadValue("spec.unknown_job", origin.at("job"), f"no job {name[:100]!r}", near(name, by_name))
    matches = [output for output, _ in job.outputs if output_name in (None, output.name)]
    if len(matches) == 1 or not job.outputs_known():
        return matches[0] if len(matches) == 1 else None
    names = [output.name for output, _ in job.outputs]
    if output_name is None and matches:
        message = f"the job {name!r} has {len(matches)} outputs"
        raise BadValue("spec.ambiguous_output", origin.node, message, f"add output: {' | '.join(names[:20])}")
    message = f"the job {name!r} has no output" + (f" {output_name[:100]!r}" if output_name else "")
    raise BadValue("spec.unknown_output", origin.at("output"), message, near(output_name or "", names))


def refuse_repeats(problems: Problems, what: str, named: Iterable[tuple[str | None, yaml.Node]]) -> None:
    first: dict[str, yaml.Node] = {}
    for name, node in named:
        if name in first:
            message = f"the {what} {name[:100]!r} already exists, on line {first[name].start_mark.line + 1}"
            problems.add("spec.duplicate_name", node, message, "give it a unique name")
        elif name:
            first[name] = node


def check(problems: Problems, drafts: list[Draft], known_runtimes: frozenset[str]) -> None:
    names = {draft.name for draft in drafts}
    refuse_repeats(problems, "job", [(draft.name, draft.record.at("name")) for draft in drafts])
    for draft in drafts:
        job = draft.record
        for code, shown_at, broken, message, suggestion in _RULES:
            if broken(job):
                problems.add(code, job.at(shown_at), message, suggestion)
        runtime = _runtime(job, known_runtimes)
        names_code = not (job.lacks("operator") and job.lacks("runtime"))
        if names_code and runtime is not None and runtime not in known_runtimes:
            message = f"no runtime {runtime[:100]!r}"
            problems.add("spec.unknown_runtime", job.at("runtime"), message, near(runtime, known_runtimes))
        keys = job.at("unique_key").value if job.get("unique_key") else ()
        refuse_repeats(
            problems, "column", [(key.value, key) for key in keys if isinstance(key, yaml.ScalarNode)]
        )
        outputs = [
            (output.name, item.nodes.get("name", item.at("dataset"))) for output, item in draft.outputs
        ]
        refuse_repeats(problems, "output", outputs)
        inputs = [(used.name, item.nodes.get("name", item.at("from"))) for used, item in draft.inputs]
        refuse_repeats(problems, "input", inputs)
        for aggregator in _aggregator_names(draft).values():
            if aggregator in names or len(aggregator) > MAX_NAME:
                fault = "which is taken" if aggregator in names else f"longer than {MAX_NAME} characters"
                message = f"Bulk needs the job name {aggregator[:200]!r}, {fault}"
                problems.add("spec.bad_batch_name", job.at("name"), message, "rename the job or its input")
            names.add(aggregator)
        source = f"{draft.name}{EVENTS_SUFFIX}"
        if runs_for_each_event(job) and (source in names or len(source) > MAX_NAME):
            fault = "which is taken" if source in names else f"longer than {MAX_NAME} characters"
            message = f"a source with an operator needs the job name {source[:200]!r}, {fault}"
            problems.add("spec.bad_batch_name", job.at("name"), message, "rename the job")


def producers_of(problems: Problems, drafts: list[Draft]) -> dict[str, int]:
    """The index of the job that produces each dataset."""
    producers: dict[str, int] = {}
    for index, draft in enumerate(drafts):
        for output, item in draft.outputs:
            if output.dataset_id in producers:
                first = drafts[producers[output.dataset_id]].name
                message = f"the job {first!r} already produces {output.dataset_id[:100]!r}"
                problems.add("spec.two_producers", item.at("dataset"), message, "write another dataset")
            producers.setdefault(output.dataset_id, index)
    return producers


def _runtime(job: YamlMap, known_runtimes: frozenset[str]) -> Any:
    if not job.lacks("runtime"):
        return job.get("runtime")
    if job.lacks("operator"):
        return "python" if webhooks.keeps_deliveries(job) or files.is_read(job) else "dispatcher"
    return "spark" if "spark" in known_runtimes else "python"


def build(draft: Draft, top: YamlMap, known_runtimes: frozenset[str]) -> list[Job]:
    """The job, preceded by those that it needs: aggregators of a Bulk job, or the source that it has."""
    job = _job(draft, top, known_runtimes)
    if runs_for_each_event(draft.record):
        source, job = _with_source(job)
        return [*webhooks.with_receiver(draft.record, source), job]
    *receivers, job = webhooks.with_receiver(draft.record, job)
    *listings, job = files.with_listing(draft.record, job)
    return [*receivers, *listings, *_with_aggregators(draft, job)]


def _with_source(job: Job) -> tuple[Job, Job]:
    """A source with an operator as it is deployed: what relays the events and, behind it, what runs for each."""
    dataset = events_dataset(job.outputs[0].dataset_id)
    # Events are accepted whatever waits behind them.
    source = replace(
        job,
        name=f"{job.name}{EVENTS_SUFFIX}",
        runtime="dispatcher",
        operator="source",
        config={},
        outputs=(Output("events", dataset),),
        update_strategy=model.UpdateStrategy.REPLACE,
        execution_strategy=model.ExecutionStrategy.PER_UPDATE,
        unique_key=(),
        execution=job.execution.of_the_dispatcher(),
        description="",
        lineage=None,
        requirements=(),
        requirements_file=None,
        generated_for=job.name,
    )
    events = Input("events", dataset, role=model.InputRole.TRIGGERS)
    return source, replace(job, activation=model.Activation.REACTIVE, source=None, inputs=(events,))


def _job(draft: Draft, top: YamlMap, known_runtimes: frozenset[str]) -> Job:
    job, source = draft.record, draft.record.get("source")
    reads = job.get("source", "format")
    return Job(
        name=draft.name,
        activation=job.get("activation") or model.Activation.REACTIVE,
        runtime=_runtime(job, known_runtimes),
        operator=job.get("operator") or _own_operator(job),
        config=(job.get("config") or {}) | ({"format": str(reads)} if reads else {}),
        inputs=tuple(used for used, _ in draft.inputs),
        outputs=tuple(output for output, _ in draft.outputs),
        execution_strategy=job.get("execution_strategy") or model.ExecutionStrategy.PER_UPDATE,
        update_strategy=job.get("update_strategy") or model.UpdateStrategy.REPLACE,
        unique_key=tuple(job.get("unique_key") or ()),
        source=_source(source) if source else None,
        execution=execution_of(job, top),
        description=job.get("description") or "",
        lineage=job.get("lineage"),
        **requirements_of(job),
    )


def requirements_of(record: YamlMap) -> dict[str, Any]:
    """What a job, or the whole file, says of the packages that its code needs."""
    found = record.get("requirements")
    if isinstance(found, str):
        return {"requirements_file": found}
    return {"requirements": tuple(found or ())}


def execution_of(job: YamlMap | None, top: YamlMap) -> model.ExecutionSettings:
    """What a job says, or else what the file says for all of them."""
    own = (
        {attribute: job.get(*path) for attribute, path in _EXECUTION_PATHS.items()} if job is not None else {}
    )
    execution = {
        attribute: value
        for attribute, path in _EXECUTION_PATHS.items()
        if (value := top.get("defaults", *path) if own.get(attribute) is None else own[attribute]) is not None
    }
    return model.ExecutionSettings(**execution)


def _own_operator(job: YamlMap) -> str:
    """Of a source that names none."""
    if webhooks.keeps_deliveries(job):
        return webhooks.ROWS
    return file_sources.ROWS if files.is_read(job) else "source"


def _source(source: YamlMap) -> model.Source:
    given = {
        name: value
        for name, value in source.values.items()
        if value is not None and name not in webhooks.SOURCE and name not in files.SOURCE
    }
    if (jitter := given.pop("jitter", None)) is not None:
        given["jitter_seconds"] = jitter
    return model.Source(**given)


def _aggregator_names(draft: Draft) -> dict[str, str]:
    """The name of the aggregator in front of a Bulk job, for each dataset that the job reads."""
    bulk = draft.record.has("execution_strategy", "Bulk")
    names = {used.dataset_id: re.sub("[^a-z0-9_-]", "_", used.name) for used, _ in draft.inputs if bulk}
    single = f"{draft.name}__batch"
    return {key: single if len(names) == 1 else f"{single}_{name}" for key, name in names.items()}


def _with_aggregators(draft: Draft, job: Job) -> list[Job]:
    """A Bulk job after its aggregators, any other job alone: the graph shows all batching."""
    names = _aggregator_names(draft)
    if not names:
        return [job]
    batches = {dataset_id: f"{dataset_id}#{job.name}.batches" for dataset_id in names}
    batch = {
        "size": draft.record.get("batch", "size"),
        "every_seconds": draft.record.get("batch", "every"),
        "all": draft.record.get("batch", "all") or None,
        "finality": draft.record.get("batch", "finality"),
        "max_wait_seconds": draft.record.get("batch", "max_wait"),
    }
    # An aggregator that waits for a full range must not hold back its own inputs.
    aggregators = [
        Job(
            name=name,
            activation=model.Activation.REACTIVE,
            runtime="dispatcher",
            operator="aggregator",
            config={
                "source_dataset": dataset_id,
                **{name: value for name, value in batch.items() if value is not None},
            },
            inputs=(Input(dataset_id, dataset_id),),
            outputs=(Output("batches", batches[dataset_id]),),
            execution_strategy=model.ExecutionStrategy.PER_UPDATE,
            update_strategy=model.UpdateStrategy.REPLACE,
            execution=job.execution.of_the_dispatcher(),
            generated_for=job.name,
        )
        for dataset_id, name in names.items()
    ]
    inputs = tuple(replace(used, dataset_id=batches[used.dataset_id]) for used in job.inputs)
    per_partition = model.ExecutionStrategy.PER_PARTITION
    return [*aggregators, replace(job, inputs=inputs, execution_strategy=per_partition)]
