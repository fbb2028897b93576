"""Built-in operators for chain data, run by Python workers inside the sandbox like any other operator.

    config           what each accepts in `config`, checked at deploy and again when it runs
    words            what the follower said about each height, and what it has to say next (pure)
    block_follower   source: one event per block, and one more for each block that a reorg changes
    range_ingest     the chain tables of a task's scope, checked against the event that asked for them
    integrity_check  committed rows against the node: one row per discrepancy

Guarantees: the follower neither skips nor repeats a word that was accepted, whatever is killed; an ingest never
commits what a node says that has not heard yet of the block it was asked for.
On failure: a node's trouble ends the attempt with its `chain.*` code, and the attempt is retried.
"""
