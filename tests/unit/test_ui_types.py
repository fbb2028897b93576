"""What the web UI expects of the API is what the API answers: its types are compared with the OpenAPI document."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_docs import openapi, public_api

SOURCES = Path(__file__).parents[2] / "ui/src"
INTERFACE = re.compile(r"^export interface (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^  (\w+)(\?)?: (.+)$", re.MULTILINE)
CALLED = re.compile(r"[`'](/(?:api/v1|auth)/[^`'?]*)")
PLACE = re.compile(r"\$\{[^}]*\}")
JSON_TYPES = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean"}

INTERFACES = dict(INTERFACE.findall((SOURCES / "types.ts").read_text()))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return asyncio.run(openapi(public_api()))


@pytest.mark.parametrize("name", sorted(INTERFACES))
def test_a_type_of_the_ui_is_one_of_the_api(document: dict[str, Any], name: str) -> None:
    schemas = document["components"]["schemas"]
    assert name in schemas
    described = schemas[name]
    wrong = []
    for field, optional, type_ in FIELD.findall(INTERFACES[name]):
        schema = described["properties"].get(field)
        if schema is None:
            wrong.append(f"{field}: the API has no such field")
            continue
        # A field that has its default is left out of answers.
        if not optional and field not in described.get("required", ()):
            wrong.append(f"{field}: it may be missing")
        expected = JSON_TYPES.get(schema.get("type", ""))
        if expected is not None and "enum" not in schema and type_ != expected:
            wrong.append(f"{field}: {expected}, not {type_}")
    assert wrong == []


def test_the_ui_calls_what_there_is(document: dict[str, Any]) -> None:
    paths = [re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path))) for path in document["paths"]]
    unknown = set()
    for source in SOURCES.rglob("*.ts*"):
        for called in CALLED.findall(source.read_text()):
            path = PLACE.sub("x", called).rstrip("/")
            if not any(known.fullmatch(path) for known in paths):
                unknown.add((source.name, called))
    # `x` stands for one of a few verbs there.
    assert {called for _, called in unknown} <= {
        *("/api/v1/jobs/${what}", "/api/v1/tasks/${what}", "/api/v1/dead-letters/${what}"),
        "/api/v1/deliveries/${what}",
        "/api/v1/${asked.what}",
    }
