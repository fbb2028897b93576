"""Fields of a config that say how data is made change it in place; the others rebuild."""

from __future__ import annotations

from typing import Any

import pytest

from tests.control_plane import ControlPlane
from traceplane.wire.deploys import DeployRequest

DAG = """
version: 1
dag: chain
jobs:
- name: head
  activation: source
  source: {kind: manual}
  outputs: [{dataset: head}]
- name: ingest
  runtime: python
  operator: range_ingest
  inputs: [{from: {job: head}}]
  outputs: [{name: blocks, dataset: blocks}]
  config: {endpoints: ["http://node.example"], batch_size: 50, CHANGED}
- name: copy
  runtime: python
  operator: python
  inputs: [{from: {job: ingest}}]
  outputs: [{dataset: copied}]
  config: {entrypoint: "basic:copy"}
"""


def chain(changed: str) -> str:
    return DAG.replace("CHANGED", changed)


async def steps(plane: ControlPlane, text: str) -> Any:
    return (await plane.api.deploys.plan(plane._call(DeployRequest(text)))).steps


async def jobs(plane: ControlPlane) -> dict[str, Any]:
    rows = await plane.sql("select name, job_id, definition->'config' as config from jobs where routed")
    return {row["name"]: (row["job_id"], row["config"]) for row in rows}


async def test_how_a_node_is_asked_is_changed_in_place_and_which_one_is_not(plane: ControlPlane) -> None:
    await plane.deploy(chain("chunk_blocks: 100"))
    before = await jobs(plane)
    asked = await steps(plane, chain("chunk_blocks: 300, timeout_seconds: 5"))
    assert not asked.rebuilt
    (changed,) = asked.in_place
    assert [(c.field, c.old, c.new) for c in changed.changes] == [
        ("config.chunk_blocks", "100", "300"),
        ("config.timeout_seconds", None, "5"),
    ]
    done = await plane.deploy(chain("chunk_blocks: 300, timeout_seconds: 5"))
    assert (done.changed, done.building) == (True, False)
    after = await jobs(plane)
    assert {name: job_id for name, (job_id, _) in after.items()} == {
        name: job_id for name, (job_id, _) in before.items()
    }
    await plane.emit("head", [1])
    [held] = await plane.claim(await plane.send())
    assert held.job.config["chunk_blocks"] == 300
    assert not (await plane.deploy(chain("chunk_blocks: 300, timeout_seconds: 5"))).changed

    elsewhere = chain("chunk_blocks: 400").replace("node.example", "other.example")
    rebuilt = (await steps(plane, elsewhere)).rebuilt
    assert [(r.job, r.downstream_of) for r in rebuilt] == [("ingest", []), ("copy", ["ingest"])]
    assert [c.field for c in rebuilt[0].changes] == [
        "config.endpoints[0]",
        "config.chunk_blocks",
        "config.timeout_seconds",
    ]


@pytest.mark.parametrize("named", ["chain_id: 1", "chain: ethereum", "chain: ethereum, chain_id: 1"])
async def test_an_endpoint_is_changed_in_place_while_the_chain_is_named(
    plane: ControlPlane, named: str
) -> None:
    """The operator checks the name, so a new address has the same data."""
    here, elsewhere, twice = "node.example", "other.example", "third.example"
    await plane.deploy(chain("chunk_blocks: 100"))
    before = await jobs(plane)
    for place in (here, elsewhere, twice):  # naming the chain changes no data, nor do the addresses then
        done = await plane.deploy(chain(named).replace(here, place))
        assert (done.changed, done.building) == (True, False)
    assert {name: job_id for name, (job_id, _) in (await jobs(plane)).items()} == {
        name: job_id for name, (job_id, _) in before.items()
    }
    await plane.emit("head", [1])
    [held] = await plane.claim(await plane.send())
    assert twice in str(held.job.config["endpoints"])
    for other in (
        chain("chain_id: 5").replace(here, elsewhere),
        chain("chunk_blocks: 100").replace(here, elsewhere),
    ):
        assert [r.job for r in (await steps(plane, other)).rebuilt] == ["ingest", "copy"]


async def test_a_field_that_is_changed_in_place_belongs_to_the_version_that_serves(
    plane: ControlPlane,
) -> None:
    """Not to one that is being built, was aborted or was rolled back."""

    async def chunk() -> int:
        _, config = (await jobs(plane))["ingest"]
        found: int = config["chunk_blocks"]
        return found

    await plane.deploy(chain("chunk_blocks: 100"))
    await plane.emit("head", [1])
    await plane.run_all()
    changed = chain("chunk_blocks: 300").replace("basic:copy", "basic:copy_2")
    assert (await plane.deploy(changed, manual_cutover=True)).building
    assert await chunk() == 100
    await plane.abort("chain")
    assert await chunk() == 100
    await plane.deploy(changed, manual_cutover=True)
    await plane.builds.run_once()
    await plane.run_all()
    await plane.cutover("chain")
    assert await chunk() == 300
    await plane.rollback("chain")
    assert await chunk() == 100
    assert not (await plane.deploy(chain("chunk_blocks: 100"))).changed
    await plane.emit("head", [2])
    [held] = await plane.claim(await plane.send())
    assert held.job.config["chunk_blocks"] == 100


async def test_a_task_is_handed_the_emission_that_its_operator_asks_for(plane: ControlPlane) -> None:
    await plane.deploy(chain("chunk_blocks: 100"))
    await plane.emit("head", [7], emission="0xabc")
    [held] = await plane.claim(await plane.send())
    assert (held.job.name, held.task.emission) == ("ingest", "0xabc")
