"""Errors of a node, in one tree.

PlatformError
└── RpcError                 a retry, or another endpoint, may help
    ├── RpcUnavailable       chain.rpc_unavailable     no answer, or the node reports a failure
    ├── RateLimited          chain.rate_limited        rate limited for longer than the client waits
    ├── RpcInvalid           chain.rpc_invalid         the answer cannot be read: JSON, ids, types, numbers
    ├── RpcInconsistent      chain.rpc_inconsistent    readable, but contradicts itself or the request
    │   └── QuirkRefused     chain.quirk_refused       departs from the rules of the chain that the settings name
    ├── EndpointsDisagree    chain.endpoints_disagree  two endpoints name different hashes for one height
    └── BeyondHead           chain.beyond_head         the block does not exist yet
UserError
├── RpcRefused               chain.rpc_refused         the node rejects the method, parameters or credentials
└── WrongChain               chain.wrong_chain         the node is of another chain than the settings say
"""

from __future__ import annotations

from typing import ClassVar

from traceplane.errors import PlatformError, UserError


def _sentence(message: str, method: str | None, endpoint: str | None) -> str:
    prefix = f"{method}: " if method else ""
    return f"{prefix}{message}" + (f" (endpoint {endpoint})" if endpoint else "")


class RpcError(PlatformError):
    """Names the endpoint (never with credentials), the method and the offending value."""

    stable_code: ClassVar[str] = "chain.rpc_unavailable"
    usual_step: ClassVar[str | None] = None
    """What to do about it, if the caller has nothing better to say."""

    def __init__(
        self,
        message: str,
        *,
        endpoint: str | None = None,
        method: str | None = None,
        value: object = None,
        next_step: str | None = None,
    ) -> None:
        sentence = _sentence(message, method, endpoint)
        super().__init__(self.stable_code, sentence, value=value, next_step=next_step or self.usual_step)
        self.endpoint = endpoint
        self.method = method


class RpcUnavailable(RpcError):
    pass


class RateLimited(RpcError):
    stable_code = "chain.rate_limited"

    def __init__(
        self, message: str, *, retry_after: float | None = None, endpoint: str | None = None
    ) -> None:
        super().__init__(message, endpoint=endpoint, value=retry_after)
        self.retry_after = retry_after


class RpcInvalid(RpcError):
    stable_code = "chain.rpc_invalid"


class RpcInconsistent(RpcError):
    stable_code = "chain.rpc_inconsistent"


class QuirkRefused(RpcInconsistent):
    stable_code = "chain.quirk_refused"
    usual_step = "use another endpoint, or leave out `chain` to accept and record it"


class EndpointsDisagree(RpcError):
    stable_code = "chain.endpoints_disagree"


class BeyondHead(RpcError):
    stable_code = "chain.beyond_head"


class RpcRefused(UserError):
    """The node would reject the same call again, so it is not retried."""

    def __init__(
        self,
        message: str,
        *,
        endpoint: str | None = None,
        method: str | None = None,
        value: object = None,
        method_missing: bool = False,
    ) -> None:
        super().__init__("chain.rpc_refused", _sentence(message, method, endpoint), value=value)
        self.endpoint = endpoint
        self.method = method
        self.method_missing = method_missing


class WrongChain(UserError):
    """Rows of two chains must not meet in one dataset."""

    def __init__(self, message: str, *, endpoint: str) -> None:
        super().__init__("chain.wrong_chain", _sentence(message, "eth_chainId", endpoint))
