"""The simulated chain as a JSON-RPC server, in this process or in a separate one.

    async with serve(seed=1, blocks=1000) as simulator:      # simulator.url, simulator.ledger, .faults
    with serve_in_process_of_its_own(seed=1, blocks=1000) as url:

Control methods: `sim_mine(n)`, `sim_fork(depth, new_length)`, `sim_fault({...})`; each answers the head.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from traceplane.chain.simulated import faults
from traceplane.chain.simulated.faults import Fault, Faults
from traceplane.chain.simulated.ledger import Ledger
from traceplane.chain.simulated.world import Block, World, bloom_bits
from traceplane.errors import InvalidInput, UserError

FINALITY_DEPTH = 64


class _Request(msgspec.Struct):
    method: str
    params: list[Any] = []
    id: int | str | None = None


_decode = msgspec.json.Decoder(_Request | list[_Request])


@dataclass(slots=True)
class Simulator:
    """A ledger that answers JSON-RPC. `handle` takes a request body and returns the bytes of the answer."""

    ledger: Ledger
    faults: Faults
    url: str = ""
    requests: int = 0  # HTTP requests, counted by tests
    calls: dict[str, int] = field(default_factory=dict)

    def handle(self, requests: Sequence[_Request], *, batched: bool) -> bytes:
        answers = [self._answer(request) for request in requests]
        ids = [msgspec.json.encode(request.id) for request in requests]
        body_fault = self.faults.strike(faults.OF_BODY, [request.method for request in requests])
        match body_fault:
            case Fault(kind="not_json"):
                return b"<html><body>502 Bad Gateway</body></html>"
            case Fault(kind="answer_limit"):
                sent = answers[: body_fault.size]
                answers = sent + [_error(-32003, "response too large")] * (len(answers) - len(sent))
            case Fault(kind="drop_answer"):
                ids, answers = ids[:-1], answers[:-1]
            case Fault(kind="duplicate_id"):
                ids = [*ids[:-1], ids[0]] if len(ids) > 1 else ids * 2
                answers = answers if len(answers) > 1 else answers * 2
                batched = True
            case Fault(kind="unknown_id"):
                ids = [*ids[:-1], b"987654321"]
        spliced = [b'{"jsonrpc":"2.0","id":' + i + a + b"}" for i, a in zip(ids, answers, strict=True)]
        body = b"[" + b",".join(spliced) + b"]" if batched else b"".join(spliced)
        return body[: len(body) // 2] if body_fault and body_fault.kind == "truncate" else body

    def _answer(self, request: _Request) -> bytes:
        self.calls[request.method] = self.calls.get(request.method, 0) + 1
        fault = self.faults.strike(faults.OF_RESULT, [request.method])
        if fault and fault.kind == "rpc_error":
            return _error(fault.code, fault.message)
        method = METHODS.get(request.method)
        if method is None or (fault and fault.kind == "method_missing"):
            return _error(-32601, f"the method {request.method} does not exist/is not available")
        try:
            result = method(self, *request.params)
        except (UserError, TypeError, ValueError, KeyError, msgspec.ValidationError) as failure:
            return _error(-32602, f"invalid params: {failure}")
        return b',"result":' + (faults.lie(fault, result) if fault else result)

    # One method per RPC name; each returns the encoded result.

    def chain_id(self) -> bytes:
        return b'"%s"' % hex(self.ledger.world.chain_id).encode()

    def version(self) -> bytes:
        return b'"%d"' % self.ledger.world.chain_id

    def client_version(self) -> bytes:
        return b'"traceplane-simulated/1"'

    def syncing(self) -> bytes:
        return b"false"

    def block_number(self) -> bytes:
        return b'"%s"' % hex(self.ledger.head).encode()

    def block_by_number(self, number: str, full: bool = False) -> bytes:
        return _block_json(self.ledger.block(self._number(number)), full)

    def block_by_hash(self, block_hash: str, full: bool = False) -> bytes:
        return _block_json(self.ledger.by_hash(_raw(block_hash)), full)

    def block_receipts(self, which: str) -> bytes:
        hashed = isinstance(which, str) and len(which) == 66
        block = self.ledger.by_hash(_raw(which)) if hashed else self.ledger.block(self._number(which))
        return b"null" if block is None else block.all_receipts()

    def transaction_receipt(self, transaction_hash: str) -> bytes:
        return self.ledger.receipt(transaction_hash) or b"null"

    def logs(self, query: dict[str, Any]) -> bytes:
        if "blockHash" in query:
            block = self.ledger.by_hash(_raw(query["blockHash"]))
            if block is None:
                raise InvalidInput("chain.simulated_invalid", "unknown block", value=query["blockHash"])
            blocks = [block]
        else:
            first = self._number(query.get("fromBlock", "latest"))
            last = min(self._number(query.get("toBlock", "latest")), self.ledger.head)
            blocks = [block for number in range(first, last + 1) if (block := self.ledger.block(number))]
        chosen = _log_filter(query.get("address"), query.get("topics") or [])
        return b"[" + b",".join([log for block in blocks for log in chosen(block)]) + b"]"

    def mine(self, count: int = 1) -> bytes:
        self.ledger.mine(count)
        return self.block_number()

    def fork(self, depth: int, new_length: int) -> bytes:
        self.ledger.fork(depth, new_length)
        return self.block_number()

    def fault(self, fault: dict[str, Any]) -> bytes:
        self.faults.arm(msgspec.convert(fault, Fault))
        return self.block_number()

    def _number(self, text: str) -> int:
        match text:
            case "latest" | "pending":
                return self.ledger.head
            case "earliest":
                return 0
            case "finalized" | "safe":
                return max(0, self.ledger.head - FINALITY_DEPTH)
        if not isinstance(text, str) or not text.startswith("0x"):
            raise InvalidInput("chain.simulated_invalid", "a block must be a 0x number or a tag", value=text)
        return int(text, 16)


METHODS: dict[str, Callable[..., bytes]] = {
    "eth_chainId": Simulator.chain_id,
    "net_version": Simulator.version,
    "web3_clientVersion": Simulator.client_version,
    "eth_syncing": Simulator.syncing,
    "eth_blockNumber": Simulator.block_number,
    "eth_getBlockByNumber": Simulator.block_by_number,
    "eth_getBlockByHash": Simulator.block_by_hash,
    "eth_getBlockReceipts": Simulator.block_receipts,
    "eth_getTransactionReceipt": Simulator.transaction_receipt,
    "eth_getLogs": Simulator.logs,
    "sim_mine": Simulator.mine,
    "sim_fork": Simulator.fork,
    "sim_fault": Simulator.fault,
}


def _raw(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


def _error(code: int, message: str) -> bytes:
    return b',"error":' + msgspec.json.encode({"code": code, "message": message})


def _block_json(block: Block | None, full: bool) -> bytes:
    if block is None:
        return b"null"
    return block.with_transactions() if full else block.with_hashes()


def _log_filter(
    addresses: str | list[str] | None, topics: list[str | list[str] | None]
) -> Callable[[Block], list[bytes]]:
    """Like a node: skips a block whose bloom cannot contain the values, without reading it."""
    contracts = [addresses] if isinstance(addresses, str) else addresses or []
    places = [[one] if isinstance(one, str) else one or [] for one in topics]
    needed = [[bloom_bits(_raw(value)) for value in values] for values in (contracts, *places) if values]

    def matches(encoded: bytes) -> bool:
        log = msgspec.json.decode(encoded)
        if contracts and log["address"] not in {one.lower() for one in contracts}:
            return False
        topics = log["topics"]
        return all(not place or (i < len(topics) and topics[i] in place) for i, place in enumerate(places))

    def chosen(block: Block) -> list[bytes]:
        if not needed:
            return list(block.logs)
        if not all(any(block.bloom & mask == mask for mask in masks) for masks in needed):
            return []
        return [log for log in block.logs if matches(log)]

    return chosen


async def _respond(simulator: Simulator, request: web.BaseRequest) -> web.StreamResponse:
    simulator.requests += 1
    try:
        decoded = _decode.decode(await request.read())
    except msgspec.DecodeError as failure:
        return _json(b'{"jsonrpc":"2.0","id":null' + _error(-32700, str(failure)) + b"}")
    batched = isinstance(decoded, list)
    requests = decoded if isinstance(decoded, list) else [decoded]
    fault = simulator.faults.strike(
        faults.OF_CONNECTION, [request.method for request in requests], len(requests)
    )
    match fault:
        case Fault(kind="http_error"):
            return web.Response(status=fault.status, text="simulated")
        case Fault(kind="rate_limit"):
            seconds = fault.seconds or 0
            headers = {} if seconds < 0 else {"Retry-After": fault.retry_date or f"{seconds:g}"}
            return web.Response(status=429, text="slow down", headers=headers)
        case Fault(kind="stall"):
            await asyncio.sleep(1 if fault.seconds is None else fault.seconds)
        case Fault(kind="too_large"):
            return web.Response(status=413, text="request entity too large")
        case Fault(kind="refuse_batch"):
            return _json(b'{"jsonrpc":"2.0","id":null' + _error(-32600, "batch too large") + b"}")
        case Fault(kind="disconnect"):
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError
    return _json(simulator.handle(requests, batched=batched))


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


@asynccontextmanager
async def serve(
    *,
    seed: int = 1,
    blocks: int = 100,
    transactions_per_block: int = 10,
    chain_id: int = 1337,
    cached_blocks: int = 1024,
    host: str = "127.0.0.1",
    port: int = 0,
) -> AsyncIterator[Simulator]:
    """A server in the running event loop, until the context ends. `blocks` is the number of the head."""
    world = World(seed, transactions_per_block=transactions_per_block, chain_id=chain_id)
    simulator = Simulator(Ledger(world, blocks, cached_blocks=cached_blocks), Faults(seed))

    async def respond(request: web.BaseRequest) -> web.StreamResponse:
        return await _respond(simulator, request)

    # A low-level server: one handler for every path, without an application's routing.
    runner = web.ServerRunner(web.Server(respond, access_log=None), shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        simulator.url = f"http://{host}:{runner.addresses[0][1]}"
        yield simulator
    finally:
        await runner.cleanup()


@contextmanager
def serve_in_process_of_its_own(**options: int) -> Iterator[str]:
    """The URL of a server in a separate process, with the options of the command line."""
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "traceplane.chain.simulated", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            if not url:
                raise InvalidInput("chain.simulated_invalid", "the simulator did not start", value=command)
            yield url
        finally:
            process.terminate()
