"""Checks a job's config against its operator's schema, and describes the schema in words."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

import msgspec
from msgspec import inspect

from traceplane.model.invalid_values import in_words
from traceplane.operators.spec import Config, JobMisfit, OperatorSpec
from traceplane.sdk import OperatorError

AnyConfig = TypeVar("AnyConfig", bound=Config)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a schema, as shown to people."""

    name: str
    allowed: str
    """In words: `a whole number from 1 to 100`."""
    default: str | None
    """As JSON. None: the field is required."""
    description: str
    note: str
    """When changing it rebuilds nothing; empty if it always rebuilds."""

    @property
    def explanation(self) -> str:
        return f"{self.description} {self.note}".rstrip()


def read(config: Mapping[str, Any], schema: type[AnyConfig]) -> AnyConfig:
    """A task's config as its operator's struct; raises OperatorError."""
    try:
        return msgspec.convert(config, schema)
    except msgspec.ValidationError as error:
        raise OperatorError("operator.misconfigured", f"config: {in_words(error)}") from None


def fields(spec: OperatorSpec) -> list[Field]:
    """In declaration order."""
    return [
        Field(
            field.name,
            _allowed(field.type),
            None if field.required else msgspec.json.encode(_default(field)).decode(),
            _description(field.type),
            _note(field.name, spec),
        )
        for field in msgspec.structs.fields(spec.config)
    ]


def _note(name: str, spec: OperatorSpec) -> str:
    if name in spec.execution_fields:
        return "Changing it rebuilds nothing."
    if name in spec.source_fields and spec.identity_fields:
        identity = " or ".join(f"`{field}`" for field in spec.identity_fields)
        return f"Changing it rebuilds nothing while {identity} is set and stays the same."
    if name in spec.identity_fields:
        return "Adding it alone rebuilds nothing."
    return ""


def misfits(config: Mapping[str, Any], spec: OperatorSpec) -> Iterator[JobMisfit]:
    """Every field that is unknown, missing or has an invalid value. Code and queries are checked elsewhere."""
    schema = {field.name: field for field in msgspec.structs.fields(spec.config)}
    unknown = [] if spec.open_config else [name for name in config if name not in schema]
    wrong = [name for name, field in schema.items() if not _fits(config, field)]
    for name in unknown:
        yield JobMisfit(("config", name), f"config has no field {name[:100]!r}", _nearest(name, schema))
    for name in wrong:
        allowed = _allowed(schema[name].type)
        if name in (spec.code_field, spec.query_field):
            continue
        elif name in config:
            message = f"expected {allowed}, found {_kind(config[name])}"
            yield JobMisfit(("config", name), message, f"write {allowed}")
        else:
            yield JobMisfit(("config",), f"the field config.{name} is missing", f"add {name}: {allowed}")
    if not unknown and not wrong:
        try:
            msgspec.convert({name: config[name] for name in schema.keys() & config.keys()}, spec.config)
        except msgspec.ValidationError as error:
            yield JobMisfit(("config",), in_words(error))


def _fits(config: Mapping[str, Any], field: msgspec.structs.FieldInfo) -> bool:
    if field.name not in config:
        return not field.required
    try:
        msgspec.convert(config[field.name], field.type)
    except msgspec.ValidationError:
        return False
    return True


def _nearest(name: str, schema: Mapping[str, object]) -> str:
    if match := difflib.get_close_matches(name[:100], list(schema), n=1):
        return f"did you mean {match[0]!r}?"
    return f"one of: {', '.join(schema)}" if schema else "this operator has no config"


def _kind(value: Any) -> str:
    """Not the value itself, which may be a secret; the file has it."""
    match value:
        case bool():
            return "true or false"
        case int() | float():
            return f"the number {value}"
        case str():
            return "text"
        case None:
            return "nothing"
        case list():
            return "a list" if value else "an empty list"
    return "a map"


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _description(annotation: Any) -> str:
    return " ".join(m.description for m in get_args(annotation)[1:] if getattr(m, "description", None))


def _allowed(annotation: Any) -> str:
    return _in_words(inspect.type_info(annotation))


def _in_words(kind: inspect.Type) -> str:
    match kind:
        case inspect.Metadata():
            return _in_words(kind.type)
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number" + _bounds(kind)
        case inspect.FloatType():
            return "a number" + _bounds(kind)
        case inspect.StrType():
            return "text" + (f" that matches {kind.pattern}" if kind.pattern else "")
        case inspect.NoneType():
            return "nothing"
        case inspect.LiteralType():
            return "one of " + ", ".join(map(str, kind.values))
        case inspect.EnumType():
            return "one of " + ", ".join(str(member.value) for member in kind.cls)
        case inspect.ListType() | inspect.VarTupleType():
            least = f" of at least {kind.min_length}" if kind.min_length else ""
            return f"a list{least}, each {_in_words(kind.item_type)}"
        case inspect.DictType():
            return f"a map, each value {_in_words(kind.value_type)}"
        case inspect.StructType():
            return "a map with the fields " + ", ".join(field.encode_name for field in kind.fields)
        case inspect.UnionType():
            return " or ".join(_in_words(one) for one in kind.types)
    return "a value"


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    low = kind.ge if kind.ge is not None else kind.gt
    if low is None:
        return f" up to {kind.le}" if kind.le is not None else ""
    word = "from" if kind.ge is not None else "above"
    if kind.le is not None:
        return f" {word} {low} to {kind.le}" if kind.ge is not None else f" above {low}, up to {kind.le}"
    return f", {low} or more" if kind.ge is not None else f" above {low}"
