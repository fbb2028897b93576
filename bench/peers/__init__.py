"""One script per peer, run in a virtual environment of the peer's own.

Every script understands the same command line and prints one JSON line; see `bench.peers.measure`.
Nothing here imports more than the standard library and the peer itself.
"""
