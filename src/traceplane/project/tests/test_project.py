"""The jobs' functions, without a platform."""

from trades import of_a_day
from volumes import by_symbol

from traceplane.testing import local_spark, operator_task


def test_each_symbol_has_its_trades(tmp_path):
    task = operator_task(tmp_path, scope="2026-11-16", config={"per_symbol": 2})
    assert [row["symbol"] for row in of_a_day(task)] == ["BTC-USD", "BTC-USD", "ETH-USD", "ETH-USD"]


def test_volumes_are_sums():
    trades = [
        {"day": "2026-11-16", "symbol": "BTC-USD", "price": 10.0, "quantity": 1.0},
        {"day": "2026-11-16", "symbol": "BTC-USD", "price": 20.0, "quantity": 2.0},
    ]
    with local_spark() as spark:
        (row,) = by_symbol(spark.createDataFrame(trades)).collect()
    assert (row.symbol, row.trades, row.volume) == ("BTC-USD", 2, 50.0)
