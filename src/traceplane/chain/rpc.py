"""A JSON-RPC client for nodes that are slow, rate limited, unavailable or wrong.

Many calls share one HTTP request. Good answers are kept; the other calls are retried on the next endpoint that is not
resting, or, if all are, after a backoff with jitter. A batch that is rejected for its size is halved. An answer is
believed only if its ids match, its types fit and the call's own `doubt` accepts it.

    async with RpcClient(RpcSettings(endpoints=("http://…",))) as client:
        head = await client.head()
        [block] = await client.batch([RpcCall("eth_getBlockByNumber", ("0x10", True))], FullBlock)
"""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

import msgspec

from traceplane.chain.answers import FullBlock, Header, RawBlock, keep_raw, needs_raw
from traceplane.chain.doubts import Doubt, doubt_header
from traceplane.chain.errors import (
    EndpointsDisagree,
    RateLimited,
    RpcError,
    RpcInvalid,
    RpcRefused,
    RpcUnavailable,
    WrongChain,
)
from traceplane.chain.rules import CHAINS, ChainRules, rules_of
from traceplane.errors import InvalidInput

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")

_READ_AHEAD_BYTES = 2 << 20
"""For one answer: the library's default of 64 kB pauses and resumes the socket many times per answer."""
METHOD_NOT_FOUND, INVALID_REQUEST, INVALID_PARAMS, LIMIT_EXCEEDED = -32601, -32600, -32602, -32005


@dataclass(frozen=True, slots=True)
class RpcSettings:
    """`calls_per_second` counts every call of a batch, as providers do. Endpoints are tried in this order."""

    endpoints: tuple[str, ...]
    chain: str | None = None
    """A name of `rules.CHAINS`, which implies the chain's id. None: the lenient rules."""
    chain_id: int | None = None
    """If set, an endpoint of another chain is refused."""
    batch_size: int = 50
    concurrency: int = 4
    calls_per_second: float | None = None
    timeout_seconds: float = 30.0
    attempts: int = 6
    backoff_seconds: float = 0.2
    backoff_limit_seconds: float = 10.0
    rest_seconds: float = 15.0
    longest_wait_seconds: float = 60.0
    largest_answer_bytes: int = 256 * 1024 * 1024

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise InvalidInput("chain.settings_invalid", "at least one endpoint is needed")
        for url in self.endpoints:
            if not _is_http(url):
                raise InvalidInput(
                    "chain.settings_invalid",
                    "an endpoint must be an http or https URL",
                    value=url.partition(":")[0],
                )
        if self.chain is not None and self.chain not in CHAINS:
            raise InvalidInput(
                "chain.settings_invalid",
                f"chain must be one of {', '.join(CHAINS)}, or left out for any other chain",
                value=self.chain,
                next_step="for another chain, leave out `chain` and set `chain_id`",
            )
        if self.chain_id is not None and self.rules.chain_id not in (None, self.chain_id):
            raise InvalidInput(
                "chain.settings_invalid",
                f"chain_id of {self.chain} must be {self.rules.chain_id}, or left out",
                value=self.chain_id,
                next_step="for a test network, leave out `chain`",
            )
        for name in ("batch_size", "concurrency", "attempts", "timeout_seconds", "largest_answer_bytes"):
            if getattr(self, name) <= 0:
                raise InvalidInput(
                    "chain.settings_invalid", f"{name} must be positive", value=getattr(self, name)
                )
        if self.calls_per_second is not None and self.calls_per_second <= 0:
            raise InvalidInput(
                "chain.settings_invalid", "calls_per_second must be positive", value=self.calls_per_second
            )

    @property
    def rules(self) -> ChainRules:
        return rules_of(self.chain)

    @property
    def expected_chain_id(self) -> int | None:
        return self.rules.chain_id if self.chain_id is None else self.chain_id


@dataclass(frozen=True, slots=True)
class RpcCall(Generic[T]):
    """One call. `doubt` says why an answer is not believed; null is not, unless `may_be_null`."""

    method: str
    params: tuple[object, ...] = ()
    doubt: Callable[[T], Doubt | None] | None = None
    may_be_null: bool = False


class _ErrorBody(msgspec.Struct):
    code: int = 0
    message: str = ""


class _Answer(msgspec.Struct, Generic[T], gc=False):
    id: int | str | None = None
    result: T | None = None
    error: _ErrorBody | None = None


class _AnswerDecoder:
    """Reads answers of one kind. Blocks with transactions that are not standard are read a second time."""

    def __init__(self, kind: Any) -> None:
        self._typed: msgspec.json.Decoder[list[_Answer[Any]] | _Answer[Any]] = msgspec.json.Decoder(
            list[_Answer[kind]] | _Answer[kind]
        )
        self._raw = _decoder(RawBlock) if kind is FullBlock else None

    def decode(self, body: bytes) -> list[_Answer[Any]] | _Answer[Any]:
        decoded = self._typed.decode(body)
        if self._raw is not None:
            answers = _as_list(decoded)
            if any(answer.result is not None and needs_raw(answer.result) for answer in answers):
                for answer, sent in zip(answers, _as_list(self._raw.decode(body)), strict=True):
                    if answer.result is not None and sent.result is not None:
                        answer.result = keep_raw(answer.result, sent.result)
        return decoded


@functools.cache
def _decoder(kind: Any) -> _AnswerDecoder:
    return _AnswerDecoder(kind)


def _as_list(decoded: list[_Answer[Any]] | _Answer[Any]) -> list[_Answer[Any]]:
    return decoded if isinstance(decoded, list) else [decoded]


class _BatchRefused(Exception):
    """The body or its answer was too large, or the answer late: a smaller batch may work."""

    def __init__(self, failure: RpcError | RpcRefused) -> None:
        self.failure = failure


@dataclass(slots=True, eq=False)
class _Endpoint:
    url: str
    label: str
    resting_until: float = 0.0
    has_right_chain: bool = False

    def without_credentials(self, text: str) -> str:
        """Nodes often repeat the URL in messages; a key in its path or query must not reach a log."""
        parts = urlsplit(self.url)
        for secret in (self.url, parts.netloc, parts.password, parts.path.strip("/"), parts.query):
            if secret and secret != urlsplit(self.label).netloc:
                text = text.replace(secret, "…")
        return text[:300]


class _Pace:
    """Limits calls per second: each reservation moves the next free slot."""

    def __init__(self, per_second: float | None) -> None:
        self._seconds_per_call = 1 / per_second if per_second else 0.0
        self._free_at = 0.0

    async def reserve(self, calls: int) -> None:
        if not self._seconds_per_call:
            return
        now = time.monotonic()
        start = max(now, self._free_at)
        self._free_at = start + calls * self._seconds_per_call
        if start > now:
            await asyncio.sleep(start - now)


class RpcClient:
    def __init__(self, settings: RpcSettings) -> None:
        self.settings = settings
        self._endpoints = [_Endpoint(url, _label(url)) for url in settings.endpoints]
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._pace = _Pace(settings.calls_per_second)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> RpcClient:
        import aiohttp  # a process that only checks settings, such as a gateway, starts faster without it

        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self.settings.timeout_seconds),
            connector=aiohttp.TCPConnector(limit=self.settings.concurrency * len(self._endpoints)),
            read_bufsize=_READ_AHEAD_BYTES,
            headers={"Content-Type": "application/json"},
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def labels(self) -> str:
        """The endpoints as named in errors, without credentials."""
        return ", ".join(endpoint.label for endpoint in self._endpoints)

    async def head(self) -> int:
        [number] = await self.batch([RpcCall("eth_blockNumber", doubt=_doubt_number)], str)
        return int(number, 16)

    async def headers(self, numbers: Sequence[int]) -> list[Header | None]:
        """None where the node has no such block (any more); the caller knows whether that is an error."""
        return await self.batch([_header_call(number) for number in numbers], Header)

    async def confirm(self, hashes: Mapping[int, str]) -> None:
        """Asks every endpoint for these blocks; a hash that differs from ours raises EndpointsDisagree."""
        calls = [_header_call(number, may_be_null=False) for number in hashes]
        for endpoint in self._endpoints:
            headers = await self._settle(calls, _decoder(Header), only=endpoint)
            for (number, expected), header in zip(hashes.items(), headers, strict=True):
                if header.hash != expected:
                    raise EndpointsDisagree(
                        f"block {number} is {expected} on another endpoint",
                        endpoint=endpoint.label,
                        method="eth_getBlockByNumber",
                        value=header.hash,
                    )

    async def batch(self, calls: Sequence[RpcCall[Any]], kind: Any) -> list[Any]:
        """The results in the order of the calls; either all of them, or an error. `kind` is the type of a result."""
        size = self.settings.batch_size
        groups = [calls[at : at + size] for at in range(0, len(calls), size)]
        answered = await _all([self._settle(group, _decoder(kind)) for group in groups])
        return [result for group in answered for result in group]

    async def _settle(
        self, calls: Sequence[RpcCall[Any]], decoder: _AnswerDecoder, only: _Endpoint | None = None
    ) -> list[Any]:
        """Retries until every call has a believable answer, or `attempts` rounds made no progress."""
        results: dict[int, Any] = {}
        candidates = [only] if only else self._endpoints
        at_once, fruitless = len(calls), 0
        while len(results) < len(calls):
            batch = [i for i in range(len(calls)) if i not in results][:at_once]
            endpoint = _awake(candidates)
            try:
                await self._check_chain(endpoint)
                answers, failure = await self._ask(endpoint, [calls[i] for i in batch], decoder)
            except _BatchRefused as refused:
                at_once = (len(batch) + 1) // 2
                if len(batch) > 1 and not isinstance(refused.failure, RpcUnavailable):
                    continue
                if isinstance(refused.failure, RpcRefused):
                    raise refused.failure from None
                answers, failure = {}, refused.failure
            except RpcError as error:
                answers, failure = {}, error
            results.update((batch[i], answer) for i, answer in answers.items())
            if failure is not None:
                fruitless = 0 if answers else fruitless + 1
                await self._recover(candidates, endpoint, failure, fruitless)
        return [results[i] for i in range(len(calls))]

    async def _check_chain(self, endpoint: _Endpoint) -> None:
        """Once for each endpoint, before its first answer is believed."""
        expected = self.settings.expected_chain_id
        if expected is None or endpoint.has_right_chain:
            return
        try:
            answers, failure = await self._ask(endpoint, [_CHAIN_ID], _decoder(str))
        except _BatchRefused as refused:
            raise refused.failure from None
        if failure is not None:
            raise failure
        if (chain_id := int(answers[0], 16)) != expected:
            message = f"the node is of chain {chain_id}, not {expected}"
            raise WrongChain(message, endpoint=endpoint.label)
        endpoint.has_right_chain = True

    async def _recover(
        self, candidates: Sequence[_Endpoint], endpoint: _Endpoint, failure: RpcError, fruitless: int
    ) -> None:
        """Lets the endpoint rest; continues immediately if another is awake, else waits, else gives up."""
        settings = self.settings
        if fruitless >= settings.attempts:
            raise failure
        asked_to_wait = failure.retry_after if isinstance(failure, RateLimited) else None
        now = time.monotonic()
        endpoint.resting_until = now + (settings.rest_seconds if asked_to_wait is None else asked_to_wait)
        if any(other.resting_until <= now for other in candidates if other is not endpoint):
            return
        if (asked_to_wait or 0) > settings.longest_wait_seconds:
            raise failure
        ceiling = min(settings.backoff_limit_seconds, settings.backoff_seconds * 2 ** max(0, fruitless - 1))
        # Jitter over the upper half: tasks that failed together must not retry together.
        await asyncio.sleep((asked_to_wait or 0) + ceiling * random.uniform(0.5, 1))  # noqa: S311 -- jitter

    async def _ask(
        self, endpoint: _Endpoint, calls: Sequence[RpcCall[Any]], decoder: _AnswerDecoder
    ) -> tuple[dict[int, Any], RpcError | None]:
        """One HTTP exchange: the believable results by position, and the first failure among the others."""
        body = await self._post(endpoint, calls)
        methods = calls[0].method
        try:
            decoded = decoder.decode(body)
        except msgspec.DecodeError as error:
            shown = endpoint.without_credentials(body[:80].decode(errors="replace"))
            raise RpcInvalid(
                f"the answer is malformed: {error}", endpoint=endpoint.label, method=methods, value=shown
            ) from None
        if not isinstance(decoded, list):
            if len(calls) > 1:
                refusal = decoded.error or _ErrorBody(0, "one answer for many calls")
                raise _BatchRefused(_refusal(endpoint, methods, refusal))
            decoded = [decoded]
        results: dict[int, Any] = {}
        failure: RpcError | None = None
        for position, answer in _by_position(endpoint, calls, decoded).items():
            problem = _problem(endpoint, calls[position], answer)
            if problem is None:
                results[position] = answer.result
            failure = failure or problem
        if failure is None and len(results) < len(calls):
            missing = len(calls) - len(results)
            failure = RpcInvalid(
                f"{missing} of {len(calls)} calls were not answered", endpoint=endpoint.label, method=methods
            )
        return results, failure

    async def _post(self, endpoint: _Endpoint, calls: Sequence[RpcCall[Any]]) -> bytes:
        if self._session is None:
            raise InvalidInput("chain.client_closed", "open the client with `async with` before calling")
        import aiohttp

        payload = [
            {"jsonrpc": "2.0", "id": i, "method": call.method, "params": call.params}
            for i, call in enumerate(calls)
        ]
        body = msgspec.json.encode(payload if len(payload) > 1 else payload[0])
        label, method = endpoint.label, calls[0].method
        await self._pace.reserve(len(calls))
        try:
            async with (
                self._slots,
                self._session.post(endpoint.url, data=body, allow_redirects=False) as response,
            ):
                _check_status(endpoint, response, method)
                return await self._read(response, label, method)
        except TimeoutError:
            late = f"no answer within {self.settings.timeout_seconds:g} s"
            raise _BatchRefused(RpcUnavailable(late, endpoint=label, method=method)) from None
        except aiohttp.ClientError as error:
            reason = endpoint.without_credentials(str(error) or type(error).__name__)
            raise RpcUnavailable(f"no answer: {reason}", endpoint=label, method=method) from None

    async def _read(self, response: aiohttp.ClientResponse, label: str, method: str) -> bytes:
        limit = self.settings.largest_answer_bytes
        chunks, size = [], 0
        async for chunk in response.content.iter_any():
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                large = f"the answer is larger than {limit} bytes"
                raise _BatchRefused(RpcInvalid(large, endpoint=label, method=method))
        return b"".join(chunks)


def _awake(endpoints: Sequence[_Endpoint]) -> _Endpoint:
    """The first endpoint that is not resting, or else the one that rests for the shortest time."""
    now = time.monotonic()
    return min(endpoints, key=lambda endpoint: max(endpoint.resting_until, now))


def _header_call(number: int, *, may_be_null: bool = True) -> RpcCall[Header]:
    doubt = functools.partial(doubt_header, number)
    return RpcCall("eth_getBlockByNumber", (hex(number), False), doubt, may_be_null)


def _doubt_number(text: str) -> Doubt | None:
    try:
        return None if int(text, 16) >= 0 else Doubt("a block number is negative", text)
    except ValueError:
        return Doubt("a block number is not hexadecimal", text)


_CHAIN_ID: RpcCall[str] = RpcCall("eth_chainId", doubt=_doubt_number)


def _by_position(
    endpoint: _Endpoint, calls: Sequence[RpcCall[Any]], answers: Sequence[_Answer[Any]]
) -> dict[int, _Answer[Any]]:
    """Answers come in any order and are matched by id alone, so an invalid id spoils the whole body."""
    placed: dict[int, _Answer[Any]] = {}
    for answer in answers:
        position = answer.id
        if not isinstance(position, int) or not 0 <= position < len(calls):
            if len(calls) == 1 and answer.error is not None:
                position = 0  # an error before the request was parsed has no id
            else:
                raise RpcInvalid(
                    "an answer has an unknown id",
                    endpoint=endpoint.label,
                    method=calls[0].method,
                    value=position,
                )
        if position in placed:
            raise RpcInvalid(
                "two answers have the same id",
                endpoint=endpoint.label,
                method=calls[position].method,
                value=position,
            )
        placed[position] = answer
    return placed


def _problem(endpoint: _Endpoint, call: RpcCall[Any], answer: _Answer[Any]) -> RpcError | None:
    if answer.error is not None:
        refusal = _refusal(endpoint, call.method, answer.error)
        if isinstance(refusal, RpcRefused):
            raise refusal
        return refusal
    if answer.result is None:
        if call.may_be_null:
            return None
        doubt: Doubt | None = Doubt("null instead of an answer", list(call.params))
    else:
        doubt = call.doubt(answer.result) if call.doubt else None
    if doubt is None:
        return None
    return doubt.as_error(endpoint=endpoint.label, method=call.method)


def _refusal(endpoint: _Endpoint, method: str, error: _ErrorBody) -> RpcError | RpcRefused:
    """Raises for a JSON-RPC error: permanent, rate limited or temporary."""
    text = f"{endpoint.without_credentials(error.message)} (code {error.code})"
    if error.code in (METHOD_NOT_FOUND, INVALID_PARAMS, INVALID_REQUEST):
        missing = error.code == METHOD_NOT_FOUND
        return RpcRefused(
            text, endpoint=endpoint.label, method=method, value=error.code, method_missing=missing
        )
    if error.code in (LIMIT_EXCEEDED, 429):
        return RateLimited(f"{method}: {text}", endpoint=endpoint.label)
    return RpcUnavailable(text, endpoint=endpoint.label, method=method, value=error.code)


def _check_status(endpoint: _Endpoint, response: aiohttp.ClientResponse, method: str) -> None:
    status, label = response.status, endpoint.label
    if status == 200:
        return
    if status == 429:
        wait = _retry_after(response.headers.get("Retry-After"))
        raise RateLimited(f"{method}: too many requests", retry_after=wait, endpoint=label)
    if status >= 500 or status == 408:
        raise RpcUnavailable(f"HTTP status {status}", endpoint=label, method=method, value=status)
    refused = RpcRefused(f"HTTP status {status}", endpoint=label, method=method, value=status)
    raise _BatchRefused(refused) if status in (400, 413) else refused


def _retry_after(text: str | None) -> float | None:
    """Seconds, or an HTTP date; an invalid value is ignored."""
    if not text:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _label(url: str) -> str:
    """Scheme, host and port. User, password, path and query may hold a key, so they are left out."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname or '?'}{port}"


async def _all(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Like gather, but a failure cancels the others, so that no calls continue for nothing."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
