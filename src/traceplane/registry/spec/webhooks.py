"""Webhook sources: the fields of `source`, and the job that receives deliveries.

A source that only reads a scope from each body is one job, whose events the gateway emits. Any other is deployed as
two: `NAME__deliveries`, the source, whose dataset keeps the deliveries, and `NAME`, which reads them and turns them
into rows, with the operator `webhook_rows` or with the user's own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import yaml

from traceplane.model import dag as model
from traceplane.model import hook_keys
from traceplane.model.dag import Input, Job, Output
from traceplane.registry.spec import yaml_reader as read
from traceplane.registry.spec.yaml_reader import BadValue, Fields, Problems, YamlMap
from traceplane.secrets import references
from traceplane.webhooks import bodies, signatures
from traceplane.webhooks.config import (
    PRESET_DEDUPE,
    Algorithm,
    Dedupe,
    Encoding,
    Preset,
    Timestamp,
    Verify,
    WebhookConfig,
)

SUFFIX = "__deliveries"
RECEIVER, ROWS = "webhook", "webhook_rows"
_MOST_KEYS = 2
_header = read.matching(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", "the name of a header")
_path = read.matching(r"[a-z0-9][a-z0-9_-]{0,99}", "a path: a-z, 0-9, _ and -, up to 100 in all")
_variable = read.matching(
    rf"{hook_keys.PREFIX}[A-Z0-9_]{{1,100}}", f"a name that begins with {hook_keys.PREFIX}"
)


def _pointer(problems: Problems, node: yaml.Node) -> str:
    value: str = read.text(problems, node)
    if (problem := bodies.pointer_problem(value)) is not None:
        raise BadValue("spec.bad_pointer", node, problem, "write for example /order/id")
    return value


def _one_or_two(name: read.Read) -> read.Read:
    """One key, or two while it is being changed."""

    def names(problems: Problems, node: yaml.Node) -> list[str]:
        if not isinstance(node, yaml.SequenceNode):
            return [name(problems, node)]
        found: list[str] = read.list_of(name)(problems, node)
        if not 1 <= len(node.value) <= _MOST_KEYS:
            raise BadValue("spec.out_of_range", node, f"there are 1 to {_MOST_KEYS} keys")
        return found

    return names


def secret_name(problems: Problems, node: yaml.Node) -> str:
    name = references.parse_name(value := read.text(problems, node))
    if name is None:
        message = f"{value[:100]!r} is not the name of a secret"
        raise BadValue("spec.bad_secret", node, message, "for example mainnet_rpc")
    return str(name)


def _verification(problems: Problems, node: yaml.Node) -> YamlMap | str | None:
    if isinstance(node, yaml.ScalarNode):
        if node.value == _NONE:
            return _NONE
        raise BadValue("spec.unknown_value", node, "expected a map, or none", "write { preset: … } or none")
    verify: YamlMap = read.record(VERIFY)(problems, node)
    return verify


_NONE = "none"
TIMESTAMP: Fields = {"header": _header, "tolerance": read.duration}
VERIFY: Fields = {
    "preset": read.choice(Preset),
    "header": _header,
    "algorithm": read.choice(Algorithm),
    "prefix": read.text,
    "encoding": read.choice(Encoding),
    "signed": read.text,
    "timestamp": read.record(TIMESTAMP),
}
SECRET: Fields = {"name": _one_or_two(secret_name), "env": _one_or_two(_variable)}
DEDUPE: Fields = {"header": _header, "pointer": _pointer}
SCOPE: Fields = {"pointer": _pointer}
SOURCE: Fields = {
    "path": read.text,
    "verify": _verification,
    "secret": read.record(SECRET),
    "dedupe": read.record(DEDUPE),
    "scope": read.record(SCOPE, "pointer"),
    "headers": read.list_of(_header),
}


# What a job is ------------------------------------------------------------------------------------------


def receives(job: YamlMap) -> bool:
    """Whether a job has a URL of its own."""
    return job.get("source", "kind") == model.SourceKind.WEBHOOK and not job.get("source").lacks("path")


def keeps_deliveries(job: YamlMap) -> bool:
    return receives(job) and job.get("source").lacks("scope")


def is_receiver(job: Job) -> bool:
    """Whether a built job keeps deliveries for the job behind it."""
    return job.operator == RECEIVER and job.config.get("scope") is None


# Checks -------------------------------------------------------------------------------------------------


def check(problems: Problems, jobs: list[YamlMap], top: YamlMap) -> None:
    paths: dict[str, yaml.Node] = {}
    names = {job.get("name") for job in jobs}
    for job in jobs:
        source: YamlMap | None = job.get("source")
        if source is None:
            continue
        if not receives(job):
            _refuse_fields(problems, source)
            continue
        path = problems.attempt(_path, source.at("path"))
        if path in paths:
            message = f"the path {path!r} is taken, on line {paths[path].start_mark.line + 1}"
            problems.add("spec.duplicate_name", source.at("path"), message, "give it a path of its own")
        elif path:
            paths[path] = source.at("path")
        _check_source(problems, source)
        if keeps_deliveries(job):
            _check_deliveries(problems, job, names, top)


def _refuse_fields(problems: Problems, source: YamlMap) -> None:
    for name in SOURCE:
        if name in source.nodes and not (name == "path" and source.get("kind") == model.SourceKind.FILE):
            message = f"only a webhook source with a path has {name}"
            problems.add("spec.field_needs_path", source.at(name), message, "add path: …, or remove it")


def _check_source(problems: Problems, source: YamlMap) -> None:
    verify = source.get("verify")
    if source.lacks("verify"):
        suggestion = "add verify: { preset: github }, verify: { header: … } or, for anybody, verify: none"
        problems.add("spec.missing_field", source.node, "the field 'verify' is missing", suggestion)
    elif isinstance(verify, YamlMap):
        _check_verify(problems, verify)
    secret = source.get("secret")
    if isinstance(secret, YamlMap) and secret.lacks("name") == secret.lacks("env"):
        message = "a secret is given by its name, or by a variable of the gateway"
        problems.add("spec.verify_incomplete", source.at("secret"), message, "write { name: … }")
    if isinstance(verify, YamlMap) and source.lacks("secret"):
        suggestion = "add secret: { name: … }, and set it with `traceplane secret set`"
        problems.add("spec.missing_field", source.node, "the field 'secret' is missing", suggestion)
    if verify == _NONE and not source.lacks("secret"):
        message = "nothing is verified, so there is no secret"
        problems.add("spec.verify_incomplete", source.at("secret"), message, "remove secret, or add verify")
    dedupe: YamlMap | None = source.get("dedupe")
    if dedupe is not None and len(dedupe.nodes) != 1:
        message = "a delivery is identified by a header or by a value of its body"
        problems.add("spec.wrong_type", dedupe.node, message, "write { header: … } or { pointer: … }")
    if source.lacks("dedupe") and not (isinstance(verify, YamlMap) and verify.get("preset")):
        suggestion = "add dedupe: { header: … } or { pointer: … }"
        problems.add("spec.missing_field", source.node, "the field 'dedupe' is missing", suggestion)


def _check_verify(problems: Problems, verify: YamlMap) -> None:
    timestamp: YamlMap | None = verify.get("timestamp")
    if not verify.lacks("preset"):
        own = [name for name in VERIFY if name in verify.nodes and name not in ("preset", "timestamp")]
        for name in own:
            problems.add(
                "spec.verify_incomplete", verify.at(name), f"the preset says what {name} is", "remove it"
            )
        if timestamp is not None and not timestamp.lacks("header"):
            message = "the preset says where the timestamp is"
            problems.add("spec.verify_incomplete", timestamp.at("header"), message, "remove it")
        if timestamp is not None and verify.has("preset", Preset.GITHUB):
            message = "GitHub signs no timestamp"
            problems.add("spec.verify_incomplete", verify.at("timestamp"), message, "remove it")
        return
    if verify.lacks("header"):
        suggestion = "add header: X-Signature, or preset: …"
        problems.add("spec.missing_field", verify.node, "the field 'header' is missing", suggestion)
    if timestamp is not None and timestamp.lacks("header"):
        message = "the field 'header' is missing"
        problems.add("spec.missing_field", timestamp.node, message, "add header: X-Timestamp")
    if signed := verify.get("signed"):
        problem = signatures.signed_text_problem(signed, timestamp=timestamp is not None)
        if problem is not None:
            suggestion = 'write for example "{timestamp}.{body}"'
            problems.add("spec.verify_incomplete", verify.at("signed"), problem, suggestion)


def _check_deliveries(problems: Problems, job: YamlMap, names: set[str | None], top: YamlMap) -> None:
    name = f"{job.get('name') or ''}{SUFFIX}"
    if name in names or len(name) > _LONGEST_NAME:
        fault = "which is taken" if name in names else f"longer than {_LONGEST_NAME} characters"
        message = f"its deliveries need the job name {name[:200]!r}, {fault}"
        problems.add("spec.bad_name", job.at("name"), message, "rename the job")
    for output in job.get("outputs") or ():
        dataset: YamlMap | None = (top.get("datasets") or {}).get(output.get("dataset"))
        by = dataset.get("partitions", "by") if dataset is not None else None
        if by is not None and by != "position":
            message = f"deliveries are numbered, so what is made from one cannot be partitioned by {by}"
            suggestion = "remove partitions, or add scope: { pointer: … } to the source"
            problems.add("spec.partitions_differ", output.at("dataset"), message, suggestion)


_LONGEST_NAME = 63


# Jobs ---------------------------------------------------------------------------------------------------


def deliveries_dataset(output: str) -> str:
    """What keeps the deliveries, by the first dataset that is made from them. Not by the name of the job: a renamed
    one continues the same deliveries."""
    return f"{output}#deliveries"


def with_receiver(record: YamlMap, job: Job) -> list[Job]:
    """A job of a webhook source as it is deployed: what receives deliveries and, behind it, what reads them."""
    if not receives(record):
        return [job]
    config: dict[str, Any] = msgspec.to_builtins(_config(record.get("source")))
    if not keeps_deliveries(record):
        return [replace(job, operator=RECEIVER, config=config)]
    dataset = deliveries_dataset(job.outputs[0].dataset_id)
    # Deliveries are accepted whatever waits behind them.
    receiver = Job(
        name=f"{job.name}{SUFFIX}",
        activation=model.Activation.SOURCE,
        runtime="dispatcher",
        operator=RECEIVER,
        config=config,
        inputs=(),
        outputs=(Output("deliveries", dataset),),
        execution_strategy=model.ExecutionStrategy.PER_UPDATE,
        update_strategy=model.UpdateStrategy.REPLACE,
        source=job.source,
        execution=job.execution.of_the_dispatcher(),
        generated_for=job.name,
    )
    reader = replace(
        job,
        activation=model.Activation.REACTIVE,
        source=None,
        inputs=(Input("deliveries", dataset),),
    )
    return [receiver, reader]


def _config(source: YamlMap) -> WebhookConfig:
    verify = source.get("verify")
    return WebhookConfig(
        path=source.get("path"),
        verify=None if verify == _NONE else _verify(verify),
        keys=_keys(source),
        dedupe=_dedupe(source),
        scope=source.get("scope", "pointer"),
        headers=tuple(source.get("headers") or ()),
    )


def _keys(source: YamlMap) -> tuple[str, ...]:
    names = tuple(f"${{secret:{name}}}" for name in source.get("secret", "name") or ())
    return names + tuple(source.get("secret", "env") or ())


def _verify(verify: YamlMap) -> Verify:
    values = {name: value for name, value in verify.values.items() if name != "timestamp"}
    timestamp: YamlMap | None = verify.get("timestamp")
    if timestamp is None:
        return Verify(**values)
    header, tolerance = timestamp.get("header"), timestamp.get("tolerance")
    stamp = Timestamp(header=header, **({} if tolerance is None else {"tolerance_seconds": tolerance}))
    return Verify(**values, timestamp=stamp)


def _dedupe(source: YamlMap) -> Dedupe:
    if (dedupe := source.get("dedupe")) is not None:
        return Dedupe(**dedupe.values)
    return PRESET_DEDUPE[source.get("verify", "preset")]
