"""The gateway: the public HTTP API. It accepts events and deploys even while no dispatcher runs, since both
are transactions on the same tables; a dispatcher picks the work up when it is back.

    alert_tests         what an alert would raise over committed rows
    alerts              alerts, as people look at them, acknowledge and silence them
    api                 routes of the public API
    audit               the audit log: refusals on their way to it, and what admins see of it
    backfill            tasks for the scopes of a range that need one and have none under way
    browser_links       links that sign a browser in with the rights of a token
    changes             which things changed, as a stream, so that pages ask for those anew
    channels            channels of an organization, as its admins set and test them
    column_lineage      one column followed through datasets, up and down
    coverage            why some positions of a dataset are missing, followed upstream
    coverage_strip      what a dataset holds, as a strip of cells
    cron_sources        cron sources: when each fires next, and when it last did
    dataset_history     how a dataset grew: its rows and bytes over time, and how fresh it is
    datasets            the catalog as people see it
    dead_letters        dead letters of buffered datasets, as people look at them, replay and drop them
    deliveries          messages that were queued for channels, as admins look at them, replay and drop them
    deploys             deploys and versions of DAGs
    emits               events by hand, committed in groups
    events              events as people look at them, and everything that one of them caused
    file_reading        DAG files of those who may not deploy, read one after the other
    file_sources        file sources: what the last listing found, and what was refused
    graph               jobs and datasets as one graph, with what holds whom
    health              which processes there are, and what the doctor finds
    hidden_values       what operators wrote, as far as the caller may see what they were handed
    iceberg             datasets as Iceberg tables, for engines that are not ours
    identity_providers  the identity providers of an organization, as its admins set them
    jobs                jobs, as people look after them: pauses, and batches that are closed by hand
    main                the gateway process, wired by hand
    pages               the web UI as files
    partition_names     names of partitions, as people write them
    people              members, roles and tokens of an organization
    pipelines           pipelines, lists of tickers and executions, as people and Celery workers reach them
    plan_steps          a plan as data, for programs
    query_engines       which engine runs a query: DuckDB at once, or Spark as a task
    query_tasks         a query that is too large for an answer: a task on Spark, whose result is a dataset
    rate_limits         how often one caller may call
    refused_names       what a call answers about a name that it cannot take
    secrets             secrets, as people set them; no route returns a value
    sign_in             who calls by a JWT or a session, and how browsers and the command line get one
    tasks               tasks, as people look at them and look after them
    webhooks            deliveries to webhook sources, committed in groups
"""
