"""One module per suite, with `run(context) -> list[Row]`."""
