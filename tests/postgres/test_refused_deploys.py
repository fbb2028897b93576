"""What a deploy refuses by what is deployed already, or by what this installation has not; and what it warns of."""

from __future__ import annotations

import pytest

from tests.control_plane import ControlPlane
from tests.dags import SOURCE, job
from traceplane.errors import InvalidInput
from traceplane.wire.tasks import ColumnSchema

DECLARED = "datasets: {mid: {columns: [{name: amount, type: int}, {name: tags, type: array<string>}]}}\n"
READER = """
version: 1
dag: reader
jobs:
- name: sums
  runtime: spark
  operator: sql
  inputs: [{name: mid, from: {dataset: mid}}]
  outputs: [{dataset: sums}]
  config: {query: "select sum(amuont) as total from mid"}
"""


async def test_a_plan_says_what_sets_off_a_webhook_source(plane: ControlPlane) -> None:
    deployed = await plane.deploy(SOURCE.replace("kind: manual", "kind: webhook"))
    assert (
        "! job numbers: it has no URL of its own; its events come from POST /api/v1/events" in deployed.text
    )


async def test_a_plan_says_how_far_the_unique_key_of_files_holds(plane: ControlPlane) -> None:
    append = ("update_strategy: append", "unique_key: [n]")
    files = SOURCE + job("seen", "in", "out", *append)
    hint = (
        "! job seen: its unique_key holds within each scope of out, not across scopes; with storage: postgres"
    )
    assert hint in (await plane.plan(files)).text
    hot = "datasets: {out: {storage: postgres, position: n, columns: [{name: n, type: bigint, nullable: false}]}}\n"
    assert "unique_key" not in (await plane.plan(files + hot)).text
    await plane.deploy(files)
    assert "unique_key" not in (await plane.plan(files + job("more", "in", "other"))).text


async def test_a_query_over_another_dag_names_columns_that_are_declared_there(plane: ControlPlane) -> None:
    await plane.deploy(DECLARED + SOURCE.lstrip() + job("copy", "in", "mid"))
    with pytest.raises(InvalidInput) as refused:
        await plane.deploy(READER)
    assert (refused.value.code, refused.value.next_step) == ("sql.unknown_column", "did you mean 'amount'?")
    assert "job sums: the query names the column 'amuont'" in refused.value.message
    assert (await plane.deploy(READER.replace("amuont", "amount"))).changed


async def test_a_task_is_handed_the_declared_columns_of_its_inputs_and_outputs(plane: ControlPlane) -> None:
    """Those of a source too, of which nobody ever commits files."""
    declared = DECLARED.replace("{mid:", "{in: {columns: [{name: n, type: bigint, nullable: false}]}, mid:")
    await plane.deploy(declared + SOURCE.lstrip() + job("copy", "in", "mid"))
    await plane.emit("in", [1])
    await plane.meter()
    (held,) = await plane.claim(await plane.send())
    assert held.task.input_schemas == [[ColumnSchema("n", "int64", False)]]
    assert held.job.outputs[0].columns == [
        ColumnSchema("amount", "int32"),
        ColumnSchema("tags", "list<element: string>"),
    ]
