"""What an operator can do in the sandbox: read its inputs, write its outputs, log, emit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from tests.process.sandbox.attacks import eventually, run, whatever_the_layers
from traceplane.errors import PlatformError
from traceplane.linux import plain_files
from traceplane.sandbox.frames import EmittedEvent, EventScope
from traceplane.sandbox.pool import Sandbox

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="operators are isolated on Linux only"),
    pytest.mark.asyncio(loop_scope="package"),
]


async def test_an_operator_reads_its_inputs_and_writes_its_outputs(sandbox: Sandbox, lake: Path) -> None:
    staging = lake / "dataset" / "first" / "staging"
    first = await run(sandbox, "innocent", payload={"outputs": [{"name": "rows", "folder": str(staging)}]})
    (output,) = first.result.outputs
    assert (output.output_index, output.name, output.row_count, len(output.schema_hash)) == (
        0,
        "rows",
        10,
        16,
    )
    assert output.files[0].path == str(staging / "part-00000.parquet")
    assert output.bytes == os.stat(output.files[0].path).st_size
    files = [file.path for file in output.files]

    second = await run(
        sandbox,
        "double",
        payload={
            "partition": {"name": "0-9", "start": 0, "end": 9},
            "inputs": [{"name": "numbers", "files": files, "where": {"n": 7}}],
            "outputs": [{"name": "doubled"}, {"name": "count"}],
        },
        staging=lake / "second",
    )
    assert second.result.error is None
    doubled, count = second.result.outputs
    assert (doubled.output_index, count.output_index) == (0, 1)
    assert parquet.read_table(doubled.files[0].path).to_pylist() == [{"n": 14}]
    assert parquet.read_table(count.files[0].path).to_pylist() == [{"rows": 1}]
    scope = EventScope(partition_key="0-9", start=0, end=9)
    assert second.result.events == (EmittedEvent(0, scope, "data", "again"),)
    assert second.lines == ["info: doubled rows=1"]
    assert second.result.start_seconds is not None


async def test_an_operator_reads_from_hundreds_of_files(sandbox: Sandbox, lake: Path) -> None:
    one = await run(sandbox, "innocent", staging=lake / "many")
    source = Path(one.result.outputs[0].files[0].path)
    files = [source.with_name(f"copy-{n}.parquet") for n in range(500)]
    for file in files:
        os.link(source, file)
    inputs = [{"name": "numbers", "files": [str(file) for file in files]}]
    outputs = [{"name": "doubled"}, {"name": "count"}]
    many = await run(sandbox, "double", payload={"inputs": inputs, "outputs": outputs})
    assert many.code is None
    assert [output.row_count for output in many.result.outputs] == [5_000, 1]


def plant(kind: str, victim: Path, folder: Path) -> str:
    """What somebody who could write to the object store put in the place of a committed file."""
    place = folder / "part.parquet"
    folder.mkdir(parents=True)
    match kind:
        case "a link to a file":
            place.symlink_to(victim)
        case "a link to a folder":
            place.symlink_to(victim.parent)
        case "a folder":
            place.mkdir()
        case "a pipe":
            os.mkfifo(place)
        case "a file in a linked folder":
            folder.rmdir()
            folder.symlink_to(victim.parent)
            place = folder / victim.name
    return str(place)


@pytest.mark.parametrize(
    "kind", ["a link to a file", "a link to a folder", "a folder", "a pipe", "a file in a linked folder"]
)
async def test_a_link_in_place_of_an_input_is_not_followed(
    kind: str, sandbox: Sandbox, lake: Path, secret_file: Path
) -> None:
    planted = plant(kind, secret_file, lake / "planted" / kind / "staging")
    payload = {"inputs": [{"name": "numbers", "files": [planted]}]}
    with pytest.raises(PlatformError) as refused:
        await run(sandbox, "look_at_files", config={"paths": [planted]}, payload=payload)
    assert (refused.value.code, refused.value.value) == ("sandbox.input_not_a_file", planted)


@pytest.mark.parametrize("kind", ["a link to a file", "a link to a folder", "a file in a linked folder"])
async def test_a_link_created_after_the_check_is_not_followed(
    kind: str, sandbox: Sandbox, lake: Path, secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = plant(kind, secret_file, lake / "raced" / kind / "staging")
    monkeypatch.setattr(plain_files, "is_plain", lambda path: True)  # it was, a moment ago
    payload = {"inputs": [{"name": "numbers", "files": [planted]}]}
    done = await run(sandbox, "look_at_files", config={"paths": [planted]}, payload=payload)
    assert (done.code, done.told) == ("sandbox.setup_failed", {})


@whatever_the_layers
async def test_an_operator_receives_its_task(sandbox: Sandbox, lake: Path) -> None:
    inputs = [{"name": "empty", "files": [], "where": {"ticker": "ACME"}}]
    payload = {"kind": "invalidation", "cursor": 17, "inputs": inputs}
    told = (await run(sandbox, "describe", task_id="t-1", config={"depth": {"a": [1]}}, payload=payload)).told
    assert told == {
        "task_id": "t-1",
        "attempt": 1,
        "kind": "invalidation",
        "scope": "17",
        "config": {"depth": {"a": [1]}},
        "inputs": {"empty": [[], {"ticker": "ACME"}]},
        "outputs": ["rows"],
        "temp_exists": True,
        "cwd": True,
    }


async def test_an_operator_may_use_threads_and_programs(sandbox: Sandbox) -> None:
    told = (await run(sandbox, "uses_threads_and_processes")).told
    assert told == {"threads": [0, 1, 2, 3], "output": "from a program"}


@whatever_the_layers
async def test_sealed_outputs_belong_to_the_wrapper_and_are_read_only(sandbox: Sandbox, lake: Path) -> None:
    finished = await run(sandbox, "innocent", staging=lake / "sealed")
    path = Path(finished.result.outputs[0].files[0].path)
    assert path.stat().st_uid == os.geteuid()
    assert path.stat().st_mode & 0o777 == 0o444
    assert path.parent.stat().st_uid == os.geteuid()


@whatever_the_layers
async def test_a_failed_attempt_leaves_no_files(sandbox: Sandbox, lake: Path) -> None:
    failed = await run(sandbox, "raises", staging=lake / "failed")
    assert failed.code == "operator.raised"
    await eventually(lambda: not (lake / "failed" / "0").exists())


@whatever_the_layers
async def test_an_output_folder_that_is_not_empty_is_refused(sandbox: Sandbox, lake: Path) -> None:
    folder = lake / "occupied"
    folder.mkdir()
    (folder / "precious").write_text("keep")
    with pytest.raises(PlatformError) as refusal:
        await run(sandbox, "innocent", payload={"outputs": [{"name": "rows", "folder": str(folder)}]})
    assert refusal.value.code == "sandbox.folder_in_use"
    assert (folder / "precious").read_text() == "keep"
    assert (await run(sandbox, "nothing")).code is None
