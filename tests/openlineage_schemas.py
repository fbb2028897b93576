"""Whether an event is what OpenLineage publishes as its schemas.

`openlineage-python` has classes that are generated from the published JSON schemas, one for each object, with what is
required, of which type, and the URL of the schema; the schemas themselves are in no package. An event is built from
them, and what they do not know is an error: a field that is misspelt would otherwise pass as an additional one.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from enum import Enum
from typing import Any
from uuid import UUID

import attr
from openlineage.client import event_v2, facet_v2

_FACETS: dict[str, type] = {
    "parent": facet_v2.parent_run.ParentRunFacet,
    "nominalTime": facet_v2.nominal_time_run.NominalTimeRunFacet,
    "processing_engine": facet_v2.processing_engine_run.ProcessingEngineRunFacet,
    "errorMessage": facet_v2.error_message_run.ErrorMessageRunFacet,
    "run.tags": facet_v2.tags_run.TagsRunFacet,
    "jobType": facet_v2.job_type_job.JobTypeJobFacet,
    "job.documentation": facet_v2.documentation_job.DocumentationJobFacet,
    "documentation": facet_v2.documentation_dataset.DocumentationDatasetFacet,
    "schema": facet_v2.schema_dataset.SchemaDatasetFacet,
    "version": facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet,
    "columnLineage": facet_v2.column_lineage_dataset.ColumnLineageDatasetFacet,
    "outputStatistics": facet_v2.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet,
}


def check(event: dict[str, Any]) -> None:
    """Fails with the place that does not fit."""
    _built(event_v2.RunEvent, event, "event")
    assert event["schemaURL"] == event_v2.RunEvent._get_schema()
    UUID(event["run"]["runId"])


def facets(event: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    holders = {"run": event["run"], "job": event["job"]}
    for side in ("inputs", "outputs"):
        holders |= {f"{side}[{n}]": dataset for n, dataset in enumerate(event[side])}
    for place, holder in holders.items():
        for group in ("facets", "inputFacets", "outputFacets"):
            for key, facet in holder.get(group, {}).items():
                yield place, key, facet


def _built(kind: Any, value: Any, place: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (kind,) = [argument for argument in arguments if argument is not type(None)]
        return _built(kind, value, place)
    if origin is list:
        assert isinstance(value, list), f"{place} is no list"
        return [_built(arguments[0], item, f"{place}[{n}]") for n, item in enumerate(value)]
    if origin is dict:
        assert isinstance(value, dict), f"{place} is no object"
        return {
            key: _built(_kind_of(arguments[1], key, place), item, f"{place}.{key}")
            for key, item in value.items()
        }
    if attr.has(kind):
        return _object(kind, value, place)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    assert isinstance(value, kind), f"{place} is no {kind}"
    return value


def _kind_of(kind: Any, key: str, place: str) -> Any:
    """Of a facet, the class of its key."""
    if not place.endswith(("facets", "Facets")):
        return kind
    holder = place.split(".")[1] if "." in place else ""
    known = _FACETS.get(f"{holder}.{key}") or _FACETS.get(key)
    assert known is not None, f"{place} has a facet that is not known: {key}"
    return known


def _object(kind: Any, value: Any, place: str) -> Any:
    assert isinstance(value, dict), f"{place} is no object"
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in attr.fields(kind)}
    unknown = value.keys() - fields.keys()
    assert not unknown, f"{place} has fields that {kind.__name__} does not have: {unknown}"
    if "_schemaURL" in fields:
        assert value["_schemaURL"] == kind._get_schema(), f"{place} names another schema"
        assert value["_producer"], place
    given = {
        fields[name].alias: _built(hints[name], item, f"{place}.{name}")
        for name, item in value.items()
        if fields[name].init
    }
    return kind(**given)
