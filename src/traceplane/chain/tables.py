"""Answers of a node → Arrow tables. Pure, and a column at a time, because backfills spend their time here.

Column names are those on which cryo and ethereum-etl agree; docs/concepts/chain.md lists our choice where they do not.
Hashes, addresses and data are 0x text. A 256-bit number is `decimal128(38, 0)`, null if it has more digits, next to a
text column, which is always exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc

from traceplane.chain import erc1155
from traceplane.chain.answers import AnyBlock, FullBlock, Log, Receipt
from traceplane.chain.errors import RpcInvalid

TRANSFER_TOPIC = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
WIDE = pa.decimal128(38, 0)
_WIDE_LIMIT = 10**38


def _schema(*columns: str) -> pa.Schema:
    """`name` is required text, `name:type` has another type, and a `?` at the end allows null."""
    kinds = {"": pa.string(), "int": pa.int64(), "wide": WIDE}
    fields = []
    for column in columns:
        name, _, kind = column.rstrip("?").partition(":")
        fields.append(pa.field(name, kinds[kind], nullable=column.endswith("?")))
    return pa.schema(fields)


BLOCKS = _schema(
    *("block_number:int", "block_hash", "parent_hash", "timestamp:int", "miner?"),
    *("gas_limit:int?", "gas_used:int?", "base_fee_per_gas:int?", "transaction_count:int", "size:int?"),
    *("difficulty:wide?", "difficulty_text?", "total_difficulty:wide?", "total_difficulty_text?"),
    *("nonce?", "sha3_uncles?", "state_root?", "transactions_root?", "receipts_root?", "withdrawals_root?"),
    *("logs_bloom?", "extra_data?", "blob_gas_used:int?", "excess_blob_gas:int?", "quirks?"),
)
TRANSACTIONS = _schema(
    *("block_number:int", "block_hash", "block_timestamp:int", "transaction_hash", "transaction_index:int"),
    *("nonce:int?", "from_address", "to_address?", "value:wide?", "value_text?", "gas:int?"),
    *("gas_price:int?", "max_fee_per_gas:int?", "max_priority_fee_per_gas:int?", "transaction_type:int?"),
    *("input?", "raw?"),
)
RECEIPTS = _schema(
    *("block_number:int", "block_hash", "transaction_hash", "transaction_index:int", "gas_used:int"),
    *("cumulative_gas_used:int", "effective_gas_price:int?", "contract_address?", "status:int?", "root?"),
)
LOGS = _schema(
    *("block_number:int", "block_hash", "transaction_hash", "transaction_index:int", "log_index:int"),
    *("address", "topic0?", "topic1?", "topic2?", "topic3?", "data"),
)
TOKEN_TRANSFERS = _schema(
    *("block_number:int", "block_hash", "transaction_hash", "transaction_index:int", "log_index:int"),
    *("token_address", "token_type", "from_address", "to_address", "value:wide?", "value_text"),
    *("token_id:wide?", "token_id_text?"),
)
ERC1155_TRANSFERS = _schema(
    *("block_number:int", "block_hash", "transaction_hash", "transaction_index:int", "log_index:int"),
    *("batch_index:int", "token_address", "operator_address", "from_address", "to_address"),
    *("value:wide?", "value_text", "token_id:wide?", "token_id_text"),
)
WITHDRAWALS = _schema(
    *("block_number:int", "block_hash", "block_timestamp:int", "withdrawal_index:int"),
    *("validator_index:int", "address", "amount:int"),
)
SCHEMAS: dict[str, pa.Schema] = {
    "blocks": BLOCKS,
    "transactions": TRANSACTIONS,
    "receipts": RECEIPTS,
    "logs": LOGS,
    "token_transfers": TOKEN_TRANSFERS,
    "erc1155_transfers": ERC1155_TRANSFERS,
    "withdrawals": WITHDRAWALS,
}


def blocks_batch(
    blocks: Sequence[AnyBlock], quirks: Mapping[str, str] = MappingProxyType({})
) -> pa.RecordBatch:
    """`quirks`: by block hash, as JSON."""
    difficulties = _numbers("difficulty", [one.difficulty for one in blocks])
    totals = _numbers("totalDifficulty", [one.total_difficulty for one in blocks])
    return _batch(
        BLOCKS,
        _int("number", [one.number for one in blocks]),
        [one.hash for one in blocks],
        [one.parent_hash for one in blocks],
        _int("timestamp", [one.timestamp for one in blocks]),
        _lower([one.miner for one in blocks]),
        _int("gasLimit", [one.gas_limit for one in blocks]),
        _int("gasUsed", [one.gas_used for one in blocks]),
        _int("baseFeePerGas", [one.base_fee_per_gas for one in blocks]),
        pa.array([len(one.transactions) for one in blocks], pa.int64()),
        _int("size", [one.size for one in blocks]),
        *(_wide(difficulties), _decimal_text(difficulties)),
        *(_wide(totals), _decimal_text(totals)),
        [one.nonce for one in blocks],
        [one.sha3_uncles for one in blocks],
        [one.state_root for one in blocks],
        [one.transactions_root for one in blocks],
        [one.receipts_root for one in blocks],
        [one.withdrawals_root for one in blocks],
        [one.logs_bloom for one in blocks],
        [one.extra_data for one in blocks],
        _int("blobGasUsed", [one.blob_gas_used for one in blocks]),
        _int("excessBlobGas", [one.excess_blob_gas for one in blocks]),
        [quirks.get(one.hash) for one in blocks],
    )


def transactions_batch(blocks: Sequence[FullBlock]) -> pa.RecordBatch:
    counts = [len(block.transactions) for block in blocks]
    every = [one for block in blocks for one in block.transactions]
    values = _numbers("value", [one.value for one in every])
    return _batch(
        TRANSACTIONS,
        _repeated(_int("number", [block.number for block in blocks]), counts),
        _repeated(pa.array([block.hash for block in blocks], pa.string()), counts),
        _repeated(_int("timestamp", [block.timestamp for block in blocks]), counts),
        [one.hash for one in every],
        _few("transactionIndex", [one.transaction_index for one in every]),
        _int("nonce", [one.nonce for one in every]),
        _lower([one.from_ for one in every]),
        _lower([one.to for one in every]),
        *(_wide(values), _decimal_text(values)),
        _int("gas", [one.gas for one in every]),
        _int("gasPrice", [one.gas_price for one in every]),
        _int("maxFeePerGas", [one.max_fee_per_gas for one in every]),
        _int("maxPriorityFeePerGas", [one.max_priority_fee_per_gas for one in every]),
        _few("type", [one.type for one in every]),
        [one.input for one in every],
        [one.raw for one in every],
    )


def receipts_batch(receipts: Sequence[Receipt]) -> pa.RecordBatch:
    return _batch(
        RECEIPTS,
        _few("blockNumber", [one.block_number for one in receipts]),
        [one.block_hash for one in receipts],
        [one.transaction_hash for one in receipts],
        _few("transactionIndex", [one.transaction_index for one in receipts]),
        _few("gasUsed", [one.gas_used for one in receipts]),
        _int("cumulativeGasUsed", [one.cumulative_gas_used for one in receipts]),
        _int("effectiveGasPrice", [one.effective_gas_price for one in receipts]),
        _lower([one.contract_address for one in receipts]),
        _few("status", [one.status for one in receipts]),
        [one.root for one in receipts],
    )


def logs_batch(logs: Sequence[Log]) -> pa.RecordBatch:
    topics = (
        zip(*[(*one.topics, None, None, None, None)[:4] for one in logs], strict=True) if logs else ((),) * 4
    )
    return _batch(
        LOGS,
        _few("blockNumber", [one.block_number for one in logs]),
        [one.block_hash for one in logs],
        [one.transaction_hash for one in logs],
        _few("transactionIndex", [one.transaction_index for one in logs]),
        _few("logIndex", [one.log_index for one in logs]),
        _lower([one.address for one in logs]),
        *topics,
        [one.data for one in logs],
    )


def token_transfers(logs: pa.Table) -> pa.Table:
    """The ERC-20 and ERC-721 transfers among the logs.

    Both standards share one event; ERC-721 indexes the token's id, so it has four topics and no data. Logs of
    other shapes (an amount that is not 32 bytes, unindexed parties) are events of other contracts.
    """
    erc721 = pc.is_valid(logs["topic3"])
    lengths = pc.utf8_length(logs["data"])
    shaped = pc.or_(pc.and_(erc721, pc.equal(lengths, 2)), pc.and_(pc.invert(erc721), pc.equal(lengths, 66)))
    is_transfer = pc.and_(pc.equal(logs["topic0"], TRANSFER_TOPIC), pc.is_valid(logs["topic2"]))
    rows = logs.filter(pc.and_(is_transfer, shaped))
    identities = rows["topic3"].to_pylist()
    ids = _numbers("topic3", identities)
    data = rows["data"].to_pylist()
    amounts = _numbers(
        "data", ["0x1" if item is not None else amount for item, amount in zip(identities, data, strict=True)]
    )
    batch = _batch(
        TOKEN_TRANSFERS,
        *(rows[name].combine_chunks() for name in LOGS.names[:5]),
        rows["address"].combine_chunks(),
        ["erc20" if one is None else "erc721" for one in identities],
        _address(rows["topic1"]),
        _address(rows["topic2"]),
        *(_wide(amounts), _decimal_text(amounts)),
        *(_wide(ids), _decimal_text(ids)),
    )
    return pa.Table.from_batches([batch])


def erc1155_transfers(logs: pa.Table) -> pa.Table:
    """One row per token that a `TransferSingle` or `TransferBatch` moves."""
    events = pa.array([erc1155.TRANSFER_SINGLE, erc1155.TRANSFER_BATCH])
    rows = logs.filter(pc.and_(pc.is_in(logs["topic0"], value_set=events), pc.is_valid(logs["topic3"])))
    moved = [
        (row, position, pair)
        for row, (event, data) in enumerate(
            zip(rows["topic0"].to_pylist(), rows["data"].to_pylist(), strict=True)
        )
        for position, pair in enumerate(erc1155.moved(event, data) or ())
    ]
    rows = rows.take(pa.array([row for row, _, _ in moved], pa.int64()))
    ids, amounts = [token for _, _, (token, _) in moved], [amount for _, _, (_, amount) in moved]
    batch = _batch(
        ERC1155_TRANSFERS,
        *(rows[name].combine_chunks() for name in LOGS.names[:5]),
        [position for _, position, _ in moved],
        rows["address"].combine_chunks(),
        *(_address(rows[name]) for name in ("topic1", "topic2", "topic3")),
        *(_wide(amounts), _decimal_text(amounts)),
        *(_wide(ids), _decimal_text(ids)),
    )
    return pa.Table.from_batches([batch])


def withdrawals_batch(blocks: Sequence[AnyBlock]) -> pa.RecordBatch:
    counts = [len(block.withdrawals or ()) for block in blocks]
    every = [one for block in blocks for one in block.withdrawals or ()]
    return _batch(
        WITHDRAWALS,
        _repeated(_int("number", [block.number for block in blocks]), counts),
        _repeated(pa.array([block.hash for block in blocks], pa.string()), counts),
        _repeated(_int("timestamp", [block.timestamp for block in blocks]), counts),
        _int("index", [one.index for one in every]),
        _int("validatorIndex", [one.validator_index for one in every]),
        _lower([one.address for one in every]),
        _int("amount", [one.amount for one in every]),
    )


def empty(name: str) -> pa.Table:
    return SCHEMAS[name].empty_table()


def _batch(schema: pa.Schema, *columns: object) -> pa.RecordBatch:
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _numbers(name: str, texts: Sequence[str | None]) -> list[int | None]:
    """Numbers of up to 256 bits from hexadecimal text."""
    numbers: list[int | None]
    try:
        if None in texts:
            numbers = [None if text is None else int(text, 16) for text in texts]
        else:
            numbers = list(map(int, texts, repeat(16)))  # type: ignore[arg-type]
    except ValueError as error:
        raise RpcInvalid(f"the field {name} does not hold a hexadecimal number", value=error) from None
    if min(filter(None, numbers), default=0) < 0:
        raise RpcInvalid(f"the field {name} holds a negative number")
    return numbers


def _int(name: str, texts: Sequence[str | None]) -> pa.Array:
    """A 64-bit column; a number that does not fit is the node's error, not a null."""
    try:
        return pa.array(_numbers(name, texts), pa.int64())
    except (OverflowError, pa.ArrowException) as error:
        raise RpcInvalid(f"the field {name} holds a number of more than 63 bits", value=error) from None


def _few(name: str, texts: Sequence[str | None]) -> pa.Array:
    """Like `_int`, for a column with few distinct values: each is converted once."""
    distinct = list(set(texts))
    numbers = dict(zip(distinct, _int(name, distinct).to_pylist(), strict=True))
    return pa.array(list(map(numbers.__getitem__, texts)), pa.int64())


def _wide(numbers: Sequence[int | None]) -> pa.Array:
    """Decimals from their bytes: several times faster than through Python's Decimal."""
    fits = [number is not None and number < _WIDE_LIMIT for number in numbers]
    data = b"".join(
        [
            (number if fit and number else 0).to_bytes(16, "little")
            for number, fit in zip(numbers, fits, strict=True)
        ]
    )
    validity = None if all(fits) else pa.array(fits, pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(WIDE, len(numbers), [validity, pa.py_buffer(data)])


def _decimal_text(numbers: Sequence[int | None]) -> pa.Array:
    return pa.array([None if number is None else str(number) for number in numbers], pa.string())


def _lower(texts: Sequence[str | None]) -> pa.Array:
    return pc.ascii_lower(pa.array(texts, pa.string()))


def _repeated(column: pa.Array, counts: Sequence[int]) -> pa.Array:
    return column.take(pa.array([i for i, count in enumerate(counts) for _ in range(count)], pa.int32()))


def _address(topic: pa.ChunkedArray) -> pa.Array:
    tail = pc.utf8_slice_codeunits(topic.combine_chunks(), 26)
    return pc.binary_join_element_wise("0x", tail, "")
