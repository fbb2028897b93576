"""Data jobs on Spark: what runs inside the sandbox, and how it finds Java.

    datasets      inputs as DataFrames of exactly their committed files; DataFrames as staged Parquet files
    failures      Spark's errors in the user's terms: without the JVM's stack, with the user's own line
    java          which Java runs Spark: one that the machine has, or the one that comes as a wheel
    session       the Spark session of this process: opened by its first task, kept for those that follow
    shipped_code  user functions that Spark runs take their project's code with them
    signals       `signal_generate`: indicators over price bars, per ticker, and the signals that they give
    task          the entrypoint of every Spark task: read, compute, write

A worker of a runtime with the capability `spark` keeps one Spark Connect server running
(`spark.server`). A task runs in the sandbox as any other (`task.run` is its entrypoint) and reaches
Spark over Connect; it holds neither the worker's token nor database credentials. What it does:

    read     each input as a DataFrame of exactly the committed files of the task's scope
    compute  the job's operator: Spark SQL, or the user's PySpark function
    write    each output as Parquet into the attempt's own staging folder

A child that is used for several tasks of one job keeps its Spark session, so a warm task costs no more than
its Spark jobs. Small results come back as Arrow and are written here, which saves Spark's commit protocol;
large ones are written by Spark itself. Nothing here imports the platform: that is the security boundary.
"""
