"""What the dispatcher does without being asked: one loop each, started by `dispatcher.main`.

A pass is a few bounded transactions that any number of dispatchers may make at once.

    backpressure      which producers are held
    builds            rebuilds get their tasks, unwanted ones are canceled, complete versions are cut over
    celery_relay      executions for Celery leave as messages
    execution_status  executions follow the tasks or Celery workers that run them
    gauges            queue depths, ages and holds as gauges
    outbox_relay      outbox rows leave for wake queues and invokers, at least once
    periodic          periodic pipelines are launched when their time has come, by the database's clock
    reaper            attempts whose lease ran out are retried, or dead
    reconciler        wake-ups that nobody claimed are sent again
    signal_publisher  committed signals go to where triggers read them
    source_monitor    keeps one run of every always-on source alive, always under the same task id
    table_statistics  has the hot tables analyzed as they grow, so that cached plans stay good
    valve             queued tasks go out, as far as concurrency, window and backpressure allow
"""
