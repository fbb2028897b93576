"""Whatever a node does, the client gives the right answer or one clear error."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest

from tests.chain.conftest import patient
from traceplane.chain.answers import FullBlock, Receipt
from traceplane.chain.doubts import doubt_block
from traceplane.chain.errors import (
    EndpointsDisagree,
    RateLimited,
    RpcError,
    RpcInconsistent,
    RpcInvalid,
    RpcRefused,
    RpcUnavailable,
    WrongChain,
)
from traceplane.chain.rpc import RpcCall, RpcClient, RpcSettings
from traceplane.chain.rules import LENIENT
from traceplane.chain.simulated.faults import Fault
from traceplane.chain.simulated.server import Simulator, serve
from traceplane.errors import InvalidInput, PlatformError

DEAD = "http://user:hunter2@127.0.0.1:9/v3/secretkey?token=topsecret"


def block_calls(*numbers: int) -> list[RpcCall[Any]]:
    return [
        RpcCall("eth_getBlockByNumber", (hex(number), True), partial(doubt_block, LENIENT, number))
        for number in numbers
    ]


async def numbers_of(client: RpcClient, *numbers: int) -> list[int]:
    return [int(block.number, 16) for block in await client.batch(block_calls(*numbers), FullBlock)]


async def test_many_calls_share_few_requests_and_are_answered_in_order(node: Simulator) -> None:
    async with RpcClient(patient(node.url, batch_size=10)) as client:
        numbers = [*range(40, 0, -1)]
        assert await numbers_of(client, *numbers) == numbers
    assert node.requests == 4


PASSING = [
    Fault("http_error"),
    Fault("rate_limit"),
    Fault("disconnect"),
    Fault("truncate"),
    Fault("not_json"),
    Fault("drop_answer"),
    Fault("duplicate_id"),
    Fault("unknown_id"),
    Fault("rpc_error"),
    Fault("rpc_error", code=-32005),
    Fault("null_result"),
    Fault("wrong_type"),
    Fault("bad_hex"),
    Fault("wrong_number"),
    Fault("foreign_transaction"),
    Fault("refuse_batch"),
    Fault("too_large"),
    Fault("refuse_batch", size=3, requests=None),
    Fault("too_large", size=1, requests=None),
]


@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: f"{fault.kind}-{fault.size}-{fault.code}")
async def test_a_temporary_fault_is_survived(node: Simulator, fault: Fault) -> None:
    node.faults.arm(Fault(**{name: getattr(fault, name) for name in fault.__struct_fields__}))
    async with RpcClient(patient(node.url)) as client:
        assert await numbers_of(client, 1, 2, 3, 4, 5, 6, 7) == [1, 2, 3, 4, 5, 6, 7]


LASTING = [
    (Fault("http_error"), RpcUnavailable, "chain.rpc_unavailable"),
    (Fault("http_error", status=401), RpcRefused, "chain.rpc_refused"),
    (Fault("http_error", status=302), RpcRefused, "chain.rpc_refused"),
    (Fault("http_error", status=400), RpcRefused, "chain.rpc_refused"),
    (Fault("disconnect"), RpcUnavailable, "chain.rpc_unavailable"),
    (Fault("rate_limit", seconds=0), RateLimited, "chain.rate_limited"),
    (Fault("rate_limit", seconds=-1), RateLimited, "chain.rate_limited"),
    (Fault("rate_limit", seconds=3600), RateLimited, "chain.rate_limited"),
    (Fault("rpc_error", code=-32005), RateLimited, "chain.rate_limited"),
    (Fault("truncate"), RpcInvalid, "chain.rpc_invalid"),
    (Fault("not_json"), RpcInvalid, "chain.rpc_invalid"),
    (Fault("duplicate_id"), RpcInvalid, "chain.rpc_invalid"),
    (Fault("unknown_id"), RpcInvalid, "chain.rpc_invalid"),
    (Fault("wrong_type"), RpcInvalid, "chain.rpc_invalid"),
    (Fault("rpc_error"), RpcUnavailable, "chain.rpc_unavailable"),
    (Fault("rpc_error", code=-32602), RpcRefused, "chain.rpc_refused"),
    (Fault("method_missing"), RpcRefused, "chain.rpc_refused"),
    (Fault("null_result"), RpcInconsistent, "chain.rpc_inconsistent"),
    (Fault("bad_hex"), RpcInconsistent, "chain.rpc_inconsistent"),
    (Fault("wrong_number"), RpcInconsistent, "chain.rpc_inconsistent"),
    (Fault("foreign_transaction"), RpcInconsistent, "chain.rpc_inconsistent"),
]


@pytest.mark.parametrize(("fault", "kind", "code"), LASTING, ids=lambda one: getattr(one, "kind", None))
async def test_a_permanent_fault_becomes_one_clear_error(
    node: Simulator, fault: Fault, kind: type[RpcError | RpcRefused], code: str
) -> None:
    changed = {name: getattr(fault, name) for name in fault.__struct_fields__}
    node.faults.arm(Fault(**{**changed, "requests": None}))
    async with RpcClient(patient(node.url)) as client:
        with pytest.raises(kind) as caught:
            await client.batch(block_calls(3, 4), FullBlock)
    assert caught.value.code == code
    assert "eth_getBlockByNumber" in str(caught.value)
    assert node.url in str(caught.value)
    assert isinstance(caught.value, PlatformError) is issubclass(kind, RpcError)


async def test_missing_answers_are_an_error_but_the_others_are_kept(node: Simulator) -> None:
    node.faults.arm(Fault("drop_answer", requests=None))
    async with RpcClient(patient(node.url)) as client:
        with pytest.raises(RpcInvalid, match="malformed"):
            await client.batch(block_calls(1, 2, 3), FullBlock)
    # Every round but the last ones brought an answer: three calls, then two, then one.
    assert node.calls["eth_getBlockByNumber"] <= 3 + 2 + 3


async def test_rounds_with_some_answers_do_not_count_as_failed(node: Simulator) -> None:
    node.faults.arm(Fault("answer_limit", requests=None))
    async with RpcClient(patient(node.url, attempts=2)) as client:
        assert await numbers_of(client, 1, 2, 3, 4, 5, 6) == [1, 2, 3, 4, 5, 6]
    assert node.requests == 6


async def test_a_stalled_answer_times_out_and_is_retried(node: Simulator) -> None:
    node.faults.arm(Fault("stall", seconds=5))
    async with RpcClient(patient(node.url, timeout_seconds=0.2)) as client:
        assert await numbers_of(client, 1, 2) == [1, 2]
        node.faults.arm(Fault("stall", seconds=5, requests=None))
        with pytest.raises(RpcUnavailable, match=r"no answer within 0.2 s"):
            await client.head()


async def test_retry_after_is_honoured(node: Simulator) -> None:
    node.faults.arm(Fault("rate_limit", seconds=0.3))
    async with RpcClient(patient(node.url)) as client:
        began = time.monotonic()
        assert await client.head() == 40
        assert time.monotonic() - began >= 0.3


async def test_the_client_limits_calls_per_second(node: Simulator) -> None:
    async with RpcClient(patient(node.url, batch_size=5, calls_per_second=100)) as client:
        began = time.monotonic()
        await numbers_of(client, *range(30))
        # The sixth batch of five leaves after twenty-five calls' time.
        assert time.monotonic() - began >= 0.25


async def test_too_large_an_answer_is_requested_in_smaller_batches(node: Simulator) -> None:
    async with RpcClient(patient(node.url, largest_answer_bytes=60_000)) as client:
        assert await numbers_of(client, *range(1, 30)) == [*range(1, 30)]
    async with RpcClient(patient(node.url, largest_answer_bytes=100)) as client:
        with pytest.raises(RpcInvalid, match="larger than 100 bytes"):
            await client.batch(block_calls(1), FullBlock)


async def test_a_dead_endpoint_rests_and_the_next_one_answers(node: Simulator) -> None:
    async with (
        serve(seed=3, blocks=40) as sick,
        RpcClient(patient(sick.url, node.url, rest_seconds=60)) as client,
    ):
        sick.faults.arm(Fault("http_error", requests=None))
        for _ in range(5):
            assert await client.head() == 40
        assert (sick.requests, node.requests) == (1, 5)


@pytest.mark.parametrize("fault", [Fault("rate_limit", seconds=3600), Fault("stall", seconds=60)])
async def test_a_slow_endpoint_is_left_for_a_fast_one(node: Simulator, fault: Fault) -> None:
    async with (
        serve(seed=3, blocks=40) as slow,
        RpcClient(patient(slow.url, node.url, rest_seconds=600, timeout_seconds=1.5)) as client,
    ):
        slow.faults.arm(Fault(fault.kind, seconds=fault.seconds, requests=None))
        assert await numbers_of(client, *range(1, 20)) == [*range(1, 20)]
        assert slow.requests == 1


async def test_retry_after_as_a_date_is_understood(node: Simulator) -> None:
    node.faults.arm(Fault("rate_limit", retry_date="Wed, 21 Oct 2015 07:28:00 GMT"))
    async with RpcClient(patient(node.url)) as client:
        assert await client.head() == 40
        node.faults.arm(Fault("rate_limit", retry_date="Wed, 21 Oct 2115 07:28:00 GMT"))
        with pytest.raises(RateLimited):
            await client.head()
        node.faults.arm(Fault("rate_limit", retry_date="whenever"))
        assert await client.head() == 40


async def test_a_lying_endpoint_is_left_for_an_honest_one(node: Simulator) -> None:
    async with serve(seed=3, blocks=40) as liar, RpcClient(patient(liar.url, node.url)) as client:
        liar.faults.arm(Fault("wrong_number", requests=None))
        assert await numbers_of(client, 7, 8) == [7, 8]


async def test_credentials_of_an_endpoint_reach_no_message() -> None:
    async with RpcClient(patient(DEAD)) as client:
        with pytest.raises(RpcUnavailable) as caught:
            await client.head()
    shown = str(caught.value) + repr(caught.value.as_dict())
    assert "http://127.0.0.1:9" in shown
    assert not any(secret in shown for secret in ("hunter2", "user", "secretkey", "topsecret"))


async def test_credentials_that_a_node_repeats_reach_no_message(node: Simulator) -> None:
    node.faults.arm(Fault("rpc_error", message=f"bad key in {node.url}/v3/secretkey", requests=None))
    async with RpcClient(patient(f"{node.url}/v3/secretkey")) as client:
        with pytest.raises(RpcUnavailable) as caught:
            await client.head()
    assert "secretkey" not in str(caught.value)


async def test_endpoints_on_different_forks_are_detected(node: Simulator) -> None:
    async with serve(seed=3, blocks=40) as other, RpcClient(patient(node.url, other.url)) as client:
        ours = "0x" + node.ledger.hash(40).hex()
        await client.confirm({40: ours})
        other.ledger.fork(1, 1)
        with pytest.raises(EndpointsDisagree) as caught:
            await client.confirm({40: ours})
        assert caught.value.code == "chain.endpoints_disagree"
        assert caught.value.endpoint == other.url
        assert caught.value.value == "0x" + other.ledger.hash(40).hex()


async def test_an_endpoint_of_another_chain_is_refused(node: Simulator) -> None:
    right = node.ledger.world.chain_id
    async with RpcClient(patient(node.url, chain_id=right)) as client:
        assert await client.head() == 40
    async with RpcClient(patient(node.url, chain_id=right + 1)) as client:
        with pytest.raises(WrongChain, match=f"of chain {right}, not {right + 1}") as refused:
            await client.head()
    assert refused.value.code == "chain.wrong_chain"


@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: f"{fault.kind}-{fault.size}-{fault.code}")
async def test_a_temporary_fault_is_survived_while_the_chain_is_asked_for(
    node: Simulator, fault: Fault
) -> None:
    node.faults.arm(Fault(**{name: getattr(fault, name) for name in fault.__struct_fields__}))
    async with RpcClient(patient(node.url, chain_id=node.ledger.world.chain_id)) as client:
        assert await numbers_of(client, 1, 2, 3) == [1, 2, 3]


async def test_one_failure_stops_the_other_batches(node: Simulator) -> None:
    node.faults.arm(Fault("method_missing"))
    async with RpcClient(patient(node.url, batch_size=1, concurrency=1)) as client:
        with pytest.raises(RpcRefused):
            await client.batch(block_calls(*range(1, 30)), FullBlock)
    assert node.requests < 30


async def test_receipts_are_decoded_with_only_the_fields_that_are_used(node: Simulator) -> None:
    async with RpcClient(patient(node.url)) as client:
        [receipts] = await client.batch([RpcCall("eth_getBlockReceipts", ("0x5",))], list[Receipt])
    assert len(receipts) == len(node.ledger.block(5).transactions)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "changes",
    [
        {"endpoints": ()},
        {"endpoints": ("ftp://host",)},
        {"endpoints": ("http://",)},
        {"endpoints": ("http://host:port",)},
        {"endpoints": ("not a url",)},
        {"batch_size": 0},
        {"attempts": 0},
        {"concurrency": -1},
        {"timeout_seconds": 0},
        {"calls_per_second": 0},
    ],
)
def test_invalid_settings_are_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        RpcSettings(**{"endpoints": ("http://host",), **changes})
    assert caught.value.code == "chain.settings_invalid"


async def test_a_client_that_is_not_open_says_so() -> None:
    with pytest.raises(InvalidInput, match="async with"):
        await RpcClient(RpcSettings(("http://127.0.0.1:9",))).head()
