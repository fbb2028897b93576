"""EVM chains over JSON-RPC: read a range, follow the head, survive reorgs, distrust the node.

    answers    typed answers of a node (pure)
    doubts     the checks that make an answer unbelievable, and the quirks that it has (pure)
    erc1155    events of ERC-1155 → the tokens that they move (pure)
    errors     errors of a node, in one tree
    extract    a range of blocks → tables, whole or in chunks
    follow     compares the recorded chain with the node's: new blocks, or a reorg (pure core, thin loop)
    rpc        one client for several endpoints: batches, retries, rate limit, failover, cross-check
    rules      which quirks are normal on which chain (data)
    simulated  a deterministic chain behind real HTTP, which forks and lies on demand
    tables     answers → Arrow tables: blocks, transactions, receipts, logs, transfers, withdrawals (pure)

This package does not depend on Spark, Postgres or the platform's services, so it runs inside a Spark task and inside a
sandboxed operator alike.

Guarantees: all rows of one answer belong to one block hash; a range is linked by parent hashes or fails; a reorg step
names exactly the recorded blocks that are no longer canonical, at any depth; what a node does differently from the book
is normal on its chain, or recorded, or refused.
On failure: every error has a stable `chain.*` code (the tree is in `errors`) and says whether a retry helps.
"""
