"""The dispatcher: events become tasks become commits. Stateless; all it knows is in Postgres.

    api           the internal HTTP API; concurrent calls share transactions
    authority     who may call: keys and tokens, refreshed every few seconds
    claimed_data  what a claimed task is handed of the catalog
    completions   which reports share a transaction
    hot_reads     where the rows of hot inputs are, and the rows themselves, a piece at a time
    hot_writes    rows of completed tasks on their way into hot tables
    in_process    jobs of the dispatcher's own runtime, inside one transaction
    invocations   tasks of `invoke` runtimes: leased here, then called with their whole payload
    job_entry     a deployed job as claims need it
    leasing       claim, heartbeat, events, complete: the transactions behind the API
    main          the dispatcher process, wired by hand
    schema_check  whether what tasks produced fits what their datasets hold

Every call of the internal API and every loop is safe under any number of dispatchers: rows are taken with
SKIP LOCKED or a lock per job, state changes are fenced by (task_id, attempt, lease_token), and whatever has
to leave the database goes through the outbox.

If a dispatcher dies at any point, nothing is half done: either a transaction committed or it did not, and
the loops of the next dispatcher (or of another one) carry on from the tables.
"""
