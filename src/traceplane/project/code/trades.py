"""Where data comes in: replace the made-up trades by a call of your exchange, file or database."""

from traceplane.sdk import OperatorTask

SYMBOLS = ("BTC-USD", "ETH-USD")


def of_a_day(task: OperatorTask):
    day = task.scope.name
    print(f"trades of {day}")  # `traceplane logs` shows it
    return [
        {"day": day, "symbol": symbol, "price": 100.0 + number, "quantity": 1.0 + number}
        for symbol in SYMBOLS
        for number in range(task.config["per_symbol"])
    ]
