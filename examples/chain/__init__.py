"""Chain data end to end: follow a chain, ingest its blocks, sum what tokens moved, check it against the node."""
