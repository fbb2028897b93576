"""Operator code that lies about its results is refused."""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.process.sandbox.attacks import SECRET, attack, run, whatever_the_layers
from traceplane.sandbox.pool import Sandbox

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="operators are isolated on Linux only"),
    pytest.mark.asyncio(loop_scope="package"),
]


@whatever_the_layers
@pytest.mark.parametrize(
    ("raw", "part"),
    [
        (b"\xff\xff\xff\xff", "a frame of 4294967295 bytes"),
        (b"\x00\x00\x00\x05hello", "not a frame"),
        (b"\x00\x00\x00\x02[]", "not a frame"),
        (b"\x00\x00\x00\x40cut", "ends 61 bytes early"),
        (b"\x00\x00", "ends 2 bytes early"),
        (b"\x00\x00\x00\x00", "not a frame"),
        (b"\x00\x01\x86\xa0" + b"[" * 100_000, "not a frame"),
        (b'\x00\x00\x00\x28{"type": "Events", "batch":1,"events":[]}', "not a source"),
    ],
)
async def test_garbage_on_the_channel_is_an_invalid_result(sandbox: Sandbox, raw: bytes, part: str) -> None:
    if raw.endswith(b"[]}"):
        raw = (len(raw) - 4).to_bytes(4, "big") + raw[4:]
    if len(raw) > 60_000:
        raw = (50_000).to_bytes(4, "big") + b"[" * 50_000
    lied = await attack(sandbox, "write_raw", config={"hex": raw.hex()})
    assert lied.code == "operator.result_invalid"
    assert part in lied.message


@whatever_the_layers
@pytest.mark.parametrize(
    ("arrange", "file", "part"),
    [
        (None, {"name": "../../../../etc/passwd", "rows": 1, "bytes": 1}, "not a frame of a child"),
        (None, {"name": "..", "rows": 1, "bytes": 1}, "not a frame of a child"),
        (None, {"name": "missing", "rows": 1, "bytes": 1}, "cannot be opened"),
        (None, {"name": "nul\0", "rows": 1, "bytes": 1}, "not a frame of a child"),
        (None, {"name": "part\n", "rows": 1, "bytes": 1}, "not a frame of a child"),
        ("symlink", {"name": "part", "rows": 1, "bytes": 1}, "cannot be opened"),
        ("fifo", {"name": "part", "rows": 1, "bytes": 0}, "not a plain file"),
        ("extra", {"name": "part", "rows": 1, "bytes": 4}, "not the reported 4"),
        ("extra", {"name": "part", "rows": -1, "bytes": 5}, "not a frame of a child"),
        (
            "extra",
            {"name": "part", "rows": 1, "bytes": 5, "statistics": {"n": {"min": "nul\0"}}},
            "not a frame of a child",
        ),
    ],
)
async def test_a_forged_file_is_refused(
    sandbox: Sandbox, secret_file: Path, arrange: str | None, file: dict[str, Any], part: str
) -> None:
    outputs = [{"name": "rows", "schema_hash": None, "files": [file]}]
    config = {"arrange": arrange, "outputs": outputs, "target": str(secret_file)}
    forged = await attack(sandbox, "forge_result", config=config)
    assert forged.code == "operator.result_invalid"
    assert part in forged.message
    assert secret_file.read_text().endswith(f'"{SECRET}"\n')


@whatever_the_layers
async def test_a_result_for_an_unknown_output_or_a_second_result_is_refused(sandbox: Sandbox) -> None:
    outputs: list[dict[str, Any]] = [{"name": "someone else's", "schema_hash": None, "files": []}]
    forged = await attack(sandbox, "forge_result", config={"outputs": outputs})
    assert forged.code == "operator.result_invalid"
    assert "does not exist" in forged.message
    repeated = await attack(sandbox, "forge_result", config={"outputs": [], "times": 2})
    assert repeated.code == "operator.result_invalid"
    assert "after the result" in repeated.message


@whatever_the_layers
@pytest.mark.parametrize(
    "event",
    [
        {"output_index": 1, "scope": {"cursor": 1}, "kind": "data", "emission": ""},
        {"output_index": 0, "scope": {"cursor": 1, "start": 1}, "kind": "data", "emission": ""},
        {"output_index": 0, "scope": {"partition_key": "p"}, "kind": "data", "emission": ""},
        {"output_index": 0, "scope": {"cursor": 2**64}, "kind": "data", "emission": ""},
        {"output_index": 0, "scope": {"cursor": 1}, "kind": "gossip", "emission": ""},
        {"output_index": 0, "scope": {"cursor": 1}, "kind": "data", "emission": "nul\0"},
        {
            "output_index": 0,
            "scope": {"partition_key": "p", "start": 2, "end": 1},
            "kind": "data",
            "emission": "",
        },
        {
            "output_index": 0,
            "scope": {"cursor": 1},
            "kind": "data",
            "emission": "",
            "dataset_uuid": "other's",
        },
    ],
)
async def test_a_forged_event_is_refused(sandbox: Sandbox, event: dict[str, Any]) -> None:
    forged = await run(sandbox, "forge_result", config={"outputs": [], "events": [event]})
    assert forged.code == "operator.result_invalid"


@whatever_the_layers
async def test_a_result_beyond_the_limits_of_a_report_is_refused(sandbox: Sandbox) -> None:
    events = {"output_index": 0, "scope": {"cursor": 1}, "kind": "data", "emission": ""}
    columns = {"name": "n", "type": "int64"}
    file = {"name": "part", "rows": 1, "bytes": 5}
    many_columns = [{"name": "rows", "schema_hash": None, "files": [], "columns": [columns] * 10_001}]
    twice = [{"name": "rows", "schema_hash": None, "files": [file, file]}]
    for config in (
        {"outputs": [], "events": [events] * 10_001},
        {"outputs": many_columns},
        {"outputs": twice, "arrange": "extra"},
    ):
        forged = await attack(sandbox, "forge_result", config=config)
        assert forged.code == "operator.result_invalid"
        assert "not a frame of a child" in forged.message


@whatever_the_layers
@pytest.mark.parametrize(("count", "size"), [(1, 100_000), (2000, 0)])
async def test_the_wrapper_writes_inline_files_only_within_limits(
    sandbox: Sandbox, count: int, size: int
) -> None:
    content = base64.b64encode(bytes(size)).decode()
    files = [{"name": f"part-{n}", "rows": 0, "bytes": size, "content": content} for n in range(count)]
    outputs = [{"name": "rows", "schema_hash": None, "files": files}]
    forged = await attack(sandbox, "forge_result", config={"outputs": outputs})
    assert forged.code == "operator.result_invalid"
    assert "the result contains more file content than allowed" in forged.message


@whatever_the_layers
async def test_an_operator_cannot_speak_for_the_platform(sandbox: Sandbox) -> None:
    forged = await run(sandbox, "forge_failure", config={"code": "sandbox.lost", "message": "x" * 100_000})
    assert forged.code == "operator.raised"
    assert len(forged.message) == 8000


@whatever_the_layers
async def test_unreported_files_are_removed(sandbox: Sandbox, lake: Path) -> None:
    outputs = [{"name": "rows", "schema_hash": None, "files": [{"name": "part", "rows": 1, "bytes": 5}]}]
    kept = await run(
        sandbox, "forge_result", config={"arrange": "extra", "outputs": outputs}, staging=lake / "reported"
    )
    assert kept.code is None
    assert os.listdir(lake / "reported" / "0") == ["part"]
