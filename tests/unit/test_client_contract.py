"""Every call of the Python client is one that the gateway describes: path, method, parameters, body and answer."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.test_docs import openapi, public_api
from traceplane.client import Client
from traceplane.wire.pipelines import ExecutionView

DAG = """
version: 1
dag: t
jobs:
- {name: numbers, activation: source, source: {kind: manual}, outputs: [{dataset: t.in}]}
"""
ID = "0198c5a4-6a4e-7f3b-9d8e-2f6f0c1d7a55"


class _Asked(Exception):
    pass


class Recorded(Client):
    """Sends nothing."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1", "tpu_x")
        self.calls: list[tuple[str, str, msgspec.Struct | None, str | None]] = []

    def _ask(self, method: str, path: str, kind: Any, body: Any = None, **query: object) -> Any:
        parameters = "&".join(f"{name}={value}" for name, value in query.items() if value is not None)
        self.calls.append((method, f"{path}?{parameters}", body, kind.__name__))
        raise _Asked

    def _call(self, method: str, path: str, body: Any) -> Iterator[bytes]:
        self.calls.append((method, path, body, None))
        raise _Asked

    def _move(self, path: str, change: Any) -> ExecutionView:
        self.calls.append(("PATCH", path, change, "ExecutionView"))
        raise _Asked


def uses(folder: Path) -> dict[str, Callable[[Client], Any]]:
    (folder / "dag.yaml").write_text(DAG)
    return {
        "deploy": lambda c: c.deploy(folder / "dag.yaml"),
        "versions": lambda c: c.versions("t", limit=3),
        "emit": lambda c: c.emit("t.in", range(3)),
        "status": lambda c: c.status(),
        "tasks": lambda c: c.tasks(dag="t", job="j", state="dead", standing="serving", limit=5),
        "explain": lambda c: c.explain(ID),
        "logs": lambda c: c.logs(ID),
        "query": lambda c: c.query("select 1", max_rows=3),
        "pieces": lambda c: next(c.pieces("select 1", format="csv")),
        "execution": lambda c: c.execution(ID).__enter__(),
    }


async def test_every_call_of_the_client_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    public = {name for name, _ in inspect.getmembers(Client, callable) if not name.startswith("_")}
    assert public == set(uses(tmp_path)), "a new call of the client needs an entry here"
    document = await openapi(public_api())
    for name, use in uses(tmp_path).items():
        client = Recorded()
        with contextlib.suppress(_Asked):
            use(client)
        (call,) = client.calls
        check(name, document["paths"], *call)


def check(
    name: str,
    paths: dict[str, Any],
    method: str,
    target: str,
    body: msgspec.Struct | None,
    answer: str | None,
) -> None:
    path, _, query = target.partition("?")
    (template,) = [p for p in paths if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", p), path)]
    operation = paths[template][method.lower()]
    described = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "query"}
    assert {pair.partition("=")[0] for pair in query.split("&") if pair} <= described, name
    sent = None if body is None else {"$ref": f"#/components/schemas/{type(body).__name__}"}
    wanted = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    assert sent == wanted, name
    if answer is not None:
        content = operation["responses"]["200"]["content"]["application/json"]["schema"]
        assert content == {"$ref": f"#/components/schemas/{answer}"}, name
