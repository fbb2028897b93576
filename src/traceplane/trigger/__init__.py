"""The trigger: signals come in, idle pipelines that watch them are launched.

    cache     pipelines in memory, kept up to date
    consumer  batches of signals: read, matched and written
    doctor    why pipelines are not triggered
    main      the trigger process, wired by hand
    matching  which pipelines a batch of signals matches: pure, on arrays, without a database
    messages  signals as they are published, and what is wrong with those that cannot be used
    rules     rules of pipelines: judged for each signal that matches otherwise

    source → batch → decode → match → one statement → executions, and tasks or messages for Celery

- **A signal counts once.** The statement that inserts executions moves the offsets of the batch too. It names the
  offsets that the batch started from; when they are not the stored ones, because another instance has the partition
  now or because the answer to an earlier try was lost, nothing happens, and the consumer goes on from what is
  stored. So neither a crash nor a rebalance loses a signal or counts one twice.
- **A pipeline runs once at a time.** A unique index says so, whatever caches and instances there are. A signal that
  finds its pipeline running is counted as skipped, and that is all that becomes of it.
- **The database is asked once per batch, never per signal.** Pipelines are kept in memory, by ticker (`matching`);
  changes to them arrive by notification, and by asking every few seconds (`cache`).
- **What cannot be understood blocks nobody.** It is put aside, with the reason, and the batch goes on (`messages`).

A batch is due when it has `batch_size` signals or `batch_timeout` is over. While one is written the next is read,
and takes with it whatever came in meanwhile: the more there is to do, the larger the batches.
"""
