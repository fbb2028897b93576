"""Jobs of the dispatcher's own runtime: small platform operators that run inside one transaction.

    aggregator     positions become batches, each of which is one partition event
    alert_route    rows that an evaluation found become messages; what is gone is taken back
    former_alerts  alerts that another version found by other periods
    jobs           takes queued tasks, runs their operator, accepts its events and ends the tasks
    operator       what an operator receives, and what it returns
    scopes         which scopes of a job are ready, and which a change of an input makes stale
    splitter       a partition becomes one cursor event for each of its positions
    told_times     in which periods the rows of inputs are that are read by a column of time

Taking the tasks, doing the work, emitting its events and finishing the tasks commit together, so there is
no lease, and no partial result is ever visible. No user code runs here.
"""
