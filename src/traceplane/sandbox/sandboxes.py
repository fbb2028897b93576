"""The sandboxes of one worker: one without the network, and one with it, started for the first job that needs it.

They are separate because an unprivileged process cannot return to a network that its fork server has left.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from traceplane.model.runtimes import Network
from traceplane.sandbox.frames import Reach
from traceplane.sandbox.pool import Sandbox
from traceplane.sandbox.sandbox_settings import SandboxSettings


class Sandboxes:
    def __init__(self, usual: Sandbox, settings: SandboxSettings, reach: Reach, network: Network) -> None:
        self._settings = replace(settings, network=reach, private_network=())
        self._usual = usual
        self._network = network
        self._online: Sandbox | None = None
        self._starting = asyncio.Lock()

    @classmethod
    async def start(cls, settings: SandboxSettings, reach: Reach, network: Network) -> Sandboxes:
        """`settings` are those of the usual one; `network` is the runtime's setting."""
        if network is Network.ALWAYS:
            settings = replace(settings, network=reach, private_network=())
        return cls(await Sandbox.start(settings), settings, reach, network)

    @property
    def layers(self) -> tuple[str, ...]:
        return self._usual.isolation.active

    async def for_job(self, *, network: bool) -> Sandbox:
        """Raises `sandbox.too_weak` if operators with the network would also reach the platform's own services."""
        if not network or self._network is not Network.JOB:
            return self._usual
        async with self._starting:
            if self._online is None:
                self._online = await Sandbox.start(self._settings)
        return self._online

    async def close(self) -> None:
        await self._usual.close()
        if self._online is not None:
            await self._online.close()
