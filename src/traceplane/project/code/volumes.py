"""A PySpark function: it gets the rows of its task's day, and returns those to store."""

from pyspark.sql import functions as f


def by_symbol(trades):
    return trades.groupBy("day", "symbol").agg(
        f.count("*").alias("trades"), f.sum(f.col("price") * f.col("quantity")).alias("volume")
    )
