"""The worker: a trusted wrapper around untrusted operator code.

    main       the process: wiring
    wrapper    waits for wake-ups, claims, heartbeats, runs, stages, completes; holds the worker token
    sandbox    where operator code runs: its own process, no token, no database, no other task's files

The wrapper heartbeats for all its tasks from its own event loop, so an operator that burns the CPU, blocks
or hangs never loses its lease; the timeout ends it instead. If the worker dies, its leases run out and the
tasks are retried elsewhere. If the dispatcher is away, running tasks go on and their completions are
repeated until they are answered.
"""
