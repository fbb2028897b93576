"""The whole DAG, on a platform of its own, with trades that the test makes up."""

TRADE = {"day": "2026-11-16", "symbol": "BTC-USD", "price": 10.0, "quantity": 2.0}


def test_trades_become_volumes(traceplane):
    traceplane.deploy("dag.yaml", given={"trades": {"2026-11-16": [TRADE, TRADE]}})
    traceplane.settle()
    (row,) = traceplane.rows("PROJECT.volumes")
    assert (row["symbol"], row["trades"], row["volume"]) == ("BTC-USD", 2, 40.0)

    traceplane.give("trades", {"2026-11-16": [TRADE]})  # a trade was withdrawn
    traceplane.settle()
    assert [row["volume"] for row in traceplane.rows("PROJECT.volumes")] == [20.0]
