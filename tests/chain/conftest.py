from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from traceplane.chain.rpc import RpcSettings
from traceplane.chain.simulated.server import Simulator, serve

QUICK = {"backoff_seconds": 0.001, "rest_seconds": 0.01, "attempts": 3}


@pytest.fixture
async def node() -> AsyncIterator[Simulator]:
    async with serve(seed=3, blocks=40) as simulator:
        yield simulator


def patient(*urls: str, **changes: object) -> RpcSettings:
    """Settings under which a test neither waits nor gives up early."""
    return RpcSettings(endpoints=urls, **{**QUICK, **changes})  # type: ignore[arg-type]


def hash_of(node: Simulator, number: int) -> str:
    return "0x" + node.ledger.hash(number).hex()
