"""SQL that people write, as text: what is allowed, and which datasets it reads. Pure.

    alert_condition  a condition on one row, as an alert states it, in Spark's dialect
    allowed_syntax   what may be in a query
    column_lineage   which columns the columns of a query are computed from
    conditions       the conditions of a query on its relations, so that fewer files are read
    functions        functions, types and units that a query may use
    gate             the first barrier: parses a query, allows what is listed, and rewrites it
    job_query        checks the query of a `sql` job before it runs
    row_condition    a condition on the rows of one dataset, as a check states it
    spark_agreement  whether the parser reads the words of a text for Spark as Spark does
    spark_dialect    a query in Spark's dialect, checked again as Spark will read it
    spark_functions  words that SQL for Spark may contain outside quotes
    spark_text       SQL for Spark without comments, and without what is not certain to mean one thing
    truth            whether an expression can be true or false at all
    virtual          virtual datasets: SQL in place of a name

`gate` parses a query, allows what is listed (`allowed_syntax`, `functions`) and rewrites it. `virtual` replaces the
names of virtual datasets by their SQL, which passed the same gate. `spark_dialect` translates the result for Spark, and
checks it again by the lists of `spark_functions`. Queries and deploys share all of it.

SQL that people write for Spark itself (`sql` jobs, alerts) is not translated. `spark_text` reduces it to what runs, and
`spark_agreement` makes sure that what is analyzed is the same.
"""
