"""The transactions behind the internal API: tasks are claimed, kept alive by heartbeats, and reported on.

    buffered       completions with rows for buffered datasets, which are handed over to sinks
    calls          requests, checked against what their capability token grants
    claim          leases for workers; fetching a held task again, and the rows of its hot inputs
    claimed_data   what a claimed task gets from the catalog
    compaction     rows of hot inputs that a task has written elsewhere leave their table
    complete       reports are judged; outputs, cursors, events and the end of the attempts commit together
    emit           events of running tasks
    failed_checks  failed checks in reports, without personal data
    file_compaction  merged files take the place of those whose rows they hold
    grouped        which reports share a transaction
    heartbeat      leases are extended; callers learn of cancellation
    hot_reads      where the rows of hot inputs are, and the rows themselves, a piece at a time
    hot_writes     rows of completed tasks on their way into hot tables
    job_entry      deployed jobs as claims need them
    judged         a report and what it does
    requirements   which tasks a worker can run, by what it offers
    schema_check   whether the outputs of tasks fit their datasets
    service        the four transactions, wired
    tokens         capability tokens for claimed tasks

Every call about a held task is fenced by (task_id, attempt, lease_token). A stale caller gets `stale` and changes
nothing. `complete` is one transaction, all or nothing; repeating the call returns the same answer and changes nothing.
"""
