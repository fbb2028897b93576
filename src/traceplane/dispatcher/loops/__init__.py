"""The dispatcher's background loops, one per module, started by `dispatcher.main`.

A pass is a few bounded transactions that any number of dispatchers may run concurrently.

    backpressure      which producers are held
    batch_closer      closes batches whose time has come
    builds            creates tasks of rebuilds, cancels tasks of retired jobs, cuts over to complete versions
    celery_relay      sends executions to Celery as messages
    cron_ticks        fires the ticks of cron sources, each one once
    deliveries        sends the messages that wait for channels
    execution_status  executions follow the tasks or Celery workers that run them
    file_compaction   makes tasks that merge small files
    file_listing      lists the files of file sources, and announces partitions that have changed
    freshness         notices datasets that got no rows for too long
    gauges            queue depths, ages and holds as gauges
    openlineage       tells a receiver of OpenLineage events what became of tasks
    outbox_relay      sends outbox rows to wake queues and invokers, at least once
    platform_alerts   the platform's own alerts: dead tasks, queues, sources, messages, disks
    periodic          launches periodic pipelines when they are due, by the database's clock
    reaper            ends attempts whose lease expired: the task is retried, or dead
    reconciler        resends wake-ups that nobody claimed
    retention         deletes files that nobody can read any more, and history that has ended
    signal_publisher  publishes committed signals for triggers to read
    sinks             commits what waits in the buffers of datasets
    source_monitor    keeps one run of every always-on source alive, always under the same task id
    table_statistics  analyzes the hot tables as they grow, so that cached plans stay good
    valve             dispatches queued tasks as far as concurrency, window and backpressure allow
    webhook_keys      forgets the keys of deliveries that nobody repeats any more
"""
