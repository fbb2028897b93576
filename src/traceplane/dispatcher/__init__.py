"""The dispatcher: events become tasks, and tasks become commits. Stateless; its whole state is in Postgres.

    api          the internal HTTP API; concurrent calls share transactions
    authority    who may call: keys and tokens, refreshed every few seconds
    in_process   jobs of the dispatcher's own runtime, inside one transaction
    invocations  tasks of `invoke` runtimes: leased here, then called with their whole payload
    leases       claim, heartbeat, events, complete: the transactions behind the API
    loops        the background loops
    main         the dispatcher process, wired by hand
    scheduling   when queued tasks are dispatched

Every call of the internal API and every loop is safe with any number of dispatchers: rows are taken with
SKIP LOCKED or a lock per job, state changes are fenced by (task_id, attempt, lease_token), and everything that
leaves the database goes through the outbox.

If a dispatcher dies, nothing is half done: each transaction either committed or did not, and the loops of another
dispatcher, or of the next one, continue from the tables.
"""
