"""The trigger reads signals and launches the idle pipelines that watch them.

    cache     pipelines in memory, kept up to date
    consumer  batches of signals: read, matched and written
    doctor    why pipelines are not triggered
    figures   counts of signals and matches for each organization, by the minute
    main      the trigger process, wired by hand
    matching  which pipelines match a batch of signals: pure, on arrays, without a database
    messages  decodes published signals and says why a message is rejected
    rules     rules of pipelines, judged for each signal that matches otherwise

    source → batch → decode → match → one statement → executions, and tasks or messages for Celery

- **A signal counts once.** The statement that inserts executions also moves the offsets of the batch. It names the
  offsets that the batch started from. If these are not the stored ones, because another instance now owns the
  partition or because the answer to an earlier attempt was lost, it changes nothing, and the consumer continues from
  the stored offsets. So neither a crash nor a rebalance loses a signal or counts one twice.
- **A pipeline runs once at a time.** A unique index ensures it, regardless of caches and instances. A signal whose
  pipeline is running is counted as skipped; nothing else happens to it.
- **The database is queried once per batch, never per signal.** Pipelines are kept in memory, by ticker (`matching`);
  changes arrive by notification, and by polling every few seconds (`cache`).
- **An invalid message blocks nothing.** It goes to the dead-letter topic with the reason, and the batch continues
  (`messages`).

A batch is due when it has `batch_size` signals or after `batch_timeout`. While one is written the next is read, with
everything that has arrived in the meantime: the higher the load, the larger the batches.
"""
