"""The worker: a trusted wrapper around untrusted operator code.

    attempt              one attempt of a task: fetches inputs, runs the operator, stores outputs
    code_cache           the code that jobs were deployed with, in folders of this worker
    direct_store         the bucket as Spark's executors see it, with credentials of one attempt
    dispatcher_client    the internal API, as a worker calls it
    environment_cache    the Python packages that jobs need, in folders of this worker
    heartbeats           extends every lease after a third of its duration
    held_task            a task whose lease this worker holds
    hot_inputs           hot inputs as files, fetched from the dispatcher in pieces
    intake               how a worker gets its tasks: from the dispatcher in one call, or woken by SQS
    long_inputs          the files of inputs that have too many for a claim
    main                 the worker process, wired by hand
    pace                 how many tasks a worker holds beyond those that run
    payload              what the operator of a claimed task receives
    renewals             where Spark's executors renew credentials for S3, while a task runs
    report               what is reported to the dispatcher about an attempt
    sandboxed_operators  runs operators in the sandbox, with the code that their jobs were deployed with
    store_on_disk        where the object store's files are on this machine
    wrapper              from wake-up to completion, for as many tasks at once as it has slots; holds the worker token

The wrapper sends heartbeats for all its tasks from its own event loop, so an operator that burns the CPU, blocks
or hangs never loses its lease; the timeout ends it instead. If the worker dies, its leases expire and the
tasks are retried elsewhere. If the dispatcher is unavailable, running tasks continue and their completions are
retried until they are answered.
"""
