"""EVM chains over JSON-RPC: read a range, follow the head, survive reorgs, distrust the node.

    answers    typed answers of a node, and the checks that make one unbelievable (pure)
    errors     errors of a node, in one tree
    extract    a range of blocks → tables, whole or in chunks
    follow     compares the recorded chain with the node's: new blocks, or a reorg (pure core, thin loop)
    rpc        one client for several endpoints: batches, retries, rate limit, failover, cross-check
    simulated  a deterministic chain behind real HTTP, which forks and lies on demand
    tables     answers → Arrow tables: blocks, transactions, receipts, logs, token_transfers (pure)

This package does not depend on Spark, Postgres or the platform's services, so it runs inside a Spark task and inside a
sandboxed operator alike.

Guarantees: all rows of one answer belong to one block hash; a range is linked by parent hashes or fails; a reorg step
names exactly the recorded blocks that are no longer canonical, at any depth.
On failure: every error has a stable `chain.*` code (the tree is in `errors`) and says whether a retry helps.
"""
