"""The dispatcher: events become tasks become commits. Stateless; all it knows is in Postgres.

Every call of the internal API and every loop is safe under any number of dispatchers: rows are taken with
SKIP LOCKED or a lock per job, state changes are fenced by (task_id, attempt, lease_token), and whatever has
to leave the database goes through the outbox.

    api            the internal HTTP API; concurrent calls share transactions (group_commit)
    leasing        claim, heartbeat, events, complete: the transactions behind the API
    completions    which of the reports share a transaction
    outbox_relay   outbox -> wake queue or invoker, at least once
    valve          queued -> dispatched, as far as concurrency and backpressure allow
    backpressure   which producers are held
    reaper         running tasks whose lease ran out
    reconciler     dispatched tasks whose wake-up was lost
    source_monitor one run for every always-on source
    in_process     jobs of the dispatcher's own runtime (aggregator, ...)
    garbage        files that nobody can read any more; run by command

If a dispatcher dies at any point, nothing is half done: either a transaction committed or it did not, and
the loops of the next dispatcher (or of another one) carry on from the tables.
"""
