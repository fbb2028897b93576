from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from traceplane.chain.rpc import RpcSettings
from traceplane.chain.simulated.server import Simulator, serve


@pytest.fixture
async def node() -> AsyncIterator[Simulator]:
    async with serve(seed=3, blocks=40) as simulator:
        yield simulator


def patient(*urls: str, **changes: object) -> RpcSettings:
    """Settings under which a test neither waits nor gives up early."""
    quick: dict[str, object] = {"backoff_seconds": 0.001, "rest_seconds": 0.01, "attempts": 3, **changes}
    return RpcSettings(endpoints=urls, **quick)  # type: ignore[arg-type]
