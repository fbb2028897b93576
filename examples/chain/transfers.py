"""Token transfers from logs, in PySpark; called both by the platform and by a plain unit test."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
"""The event that ERC-20 and ERC-721 share; ERC-721 indexes the token's id, so it has a fourth topic and no data."""


def transfers(logs: DataFrame) -> DataFrame:
    is_nft = F.col("topic3").isNotNull()
    shaped = F.when(is_nft, F.col("data") == "0x").otherwise(F.length("data") == 66)
    found = logs.filter((F.col("topic0") == TRANSFER) & F.col("topic2").isNotNull() & shaped)
    amount = decimal_text(F.when(~is_nft, F.col("data")))
    return found.select(
        "block_number",
        "block_hash",
        "transaction_hash",
        "transaction_index",
        "log_index",
        F.col("address").alias("token_address"),
        F.when(is_nft, "erc721").otherwise("erc20").alias("token_type"),
        address("topic1").alias("from_address"),
        address("topic2").alias("to_address"),
        F.when(is_nft, "1").otherwise(amount).alias("value_text"),
        decimal_text("topic3").alias("token_id_text"),
    ).withColumns({"value": fitting("value_text"), "token_id": fitting("token_id_text")})


def address(topic: str) -> Column:
    """The last 20 of a topic's 32 bytes."""
    return F.lower(F.concat(F.lit("0x"), F.substring(topic, -40, 40)))


@F.arrow_udf(StringType())
def decimal_text(words: pa.Array) -> pa.Array:
    """256-bit numbers in decimal digits; Spark's own conversions end at 64 bits."""
    return pa.array([None if word is None else str(int(word, 16)) for word in words.to_pylist()], pa.string())


def fitting(text: str) -> Column:
    """The number itself if it fits into a decimal, which has 38 digits."""
    return F.when(F.length(text) <= 38, F.col(text).cast("decimal(38,0)"))
