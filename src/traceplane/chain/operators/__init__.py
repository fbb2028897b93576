"""Built-in operators for chain data, run by Python workers inside the sandbox like any other operator.

    announcements    what the follower announced about each height, and what it announces next (pure)
    block_follower   source: one event per block, and one more for each block that a reorg changes
    config           what each operator accepts in `config`, checked at deploy and when it runs
    integrity_check  compares committed rows with the node: one row per discrepancy
    parts            a range in parts, which run in parallel in Spark's Python processes
    range_ingest     the chain tables of a task's scope, checked against the event that caused the task
    specs            the operators, as listed in the catalog

Guarantees: the follower neither skips nor repeats an accepted announcement, whatever is killed; an ingest never
commits the answer of a node that does not know the announced block yet.
On failure: an error of the node ends the attempt with its `chain.*` code, and the attempt is retried.
"""
