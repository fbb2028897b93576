"""EVM chains over JSON-RPC: read a range, follow the head, survive reorgs, distrust the node.

    answers  what a node answers, with only the fields that are used, and what makes an answer unbelievable
    errors   what can go wrong with a node, in one tree
    extract  a range of blocks → tables
    follow   the recorded chain against the node's: which blocks come next, or which recorded ones are no longer true
    rpc      a JSON-RPC client that expects nodes to be slow, rate limited, absent and wrong
    tables   answers of a node → Arrow tables

    rpc        one client for several endpoints: batches, retries, rate limit, failover, cross-check
    answers    what a node may answer, typed, and what makes an answer unbelievable (pure)
    tables     answers → Arrow tables: blocks, transactions, receipts, logs, token_transfers (pure)
    extract    a range of blocks → tables, whole or in chunks
    follow     the recorded chain against the node's: next blocks, or a reorg (pure core, thin loop)
    simulated  a deterministic chain behind real HTTP, which forks and lies on demand

Nothing here knows of Spark, Postgres or the platform's services, so that it runs inside a Spark task and
inside a sandboxed operator alike.

Guarantees: every row of one answer belongs to one block hash; a range comes back linked by parent hashes or
not at all; a reorg step names exactly the recorded blocks that are no longer canonical, however deep.
On failure: every error has a stable `chain.*` code (the tree is in `rpc`), and says whether retrying helps.
"""
