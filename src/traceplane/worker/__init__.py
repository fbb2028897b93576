"""The worker: a trusted wrapper around untrusted operator code.

    attempt            one attempt of a task: inputs fetched, operator run, outputs stored
    code_cache         the code that jobs were deployed with, as folders of this worker
    dispatcher_client  the internal API, as a worker calls it
    heartbeats         every lease is extended at a third of its length
    held_task          a task that this worker holds the lease of
    hot_inputs         hot inputs as files, fetched from the dispatcher in pieces
    intake             how a worker comes by its tasks: from the dispatcher in one call, or woken by SQS
    main               the worker process, wired by hand
    pace               how many tasks a worker holds beyond those that run
    payload            what the operator of a claimed task is handed
    report             what the dispatcher is told of an attempt
    store_on_disk      where the object store's files are on this machine
    wrapper            from wake-up to completion, for as many tasks at once as there are slots; holds the worker token

The wrapper heartbeats for all its tasks from its own event loop, so an operator that burns the CPU, blocks
or hangs never loses its lease; the timeout ends it instead. If the worker dies, its leases run out and the
tasks are retried elsewhere. If the dispatcher is away, running tasks go on and their completions are
repeated until they are answered.
"""
