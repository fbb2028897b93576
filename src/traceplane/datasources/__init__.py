"""Python data sources for any Spark: chains over JSON-RPC, and the datasets of a gateway.

    from traceplane.datasources import EvmDataSource, TraceplaneDataSource

    spark.dataSource.register(EvmDataSource)
    spark.dataSource.register(TraceplaneDataSource)
    logs = spark.read.format("evm").option("endpoint", "https://node.example").option("table", "logs").load()
    orders = spark.read.format("traceplane").option("url", "https://gateway.example").load("shop.orders")

    evm       tables of a chain, read in parallel from its nodes; batches and streams
    datasets  datasets as of one moment, read in parallel through the query service, with its rights
    options   options of a reader, checked like the config of an operator
    filters   filters that Spark pushes down

Spark runs this package in Python processes of its own, on the driver and on executors; it must be installed on both.
Rows are Arrow batches. Filters only reduce what is read: Spark applies them again.
"""

from __future__ import annotations

from traceplane.datasources.datasets import TraceplaneDataSource
from traceplane.datasources.evm import EvmDataSource

__all__ = ["EvmDataSource", "TraceplaneDataSource"]
