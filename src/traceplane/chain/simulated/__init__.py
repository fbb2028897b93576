"""A deterministic EVM chain behind real HTTP JSON-RPC, for tests, examples and benchmarks.

    world     seed → accounts, blocks, transactions, receipts, logs and their JSON (pure)
    ledger    which block is canonical at each height: mining, forks, lookups, a bounded cache
    faults    the ways in which the server can fail or lie
    dialects  the ways in which nodes of other chains depart from the book
    server    HTTP: batches, methods, control methods, in process or as a separate process

The same seed gives the same chain, byte for byte. Real: header RLP and its keccak (so hashes and parent
hashes can be checked), transaction RLP and hashes, log blooms, gas sums, log indexes. Seeded: the state,
transaction and receipt trie roots, signatures, account nonces; nothing is executed.
"""
