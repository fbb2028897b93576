"""SQL that people write, as text: what of it is let through, and what datasets it reads. Pure.

    functions        functions, types and units that a query may use
    gate             the first line: parse, allow what is listed, and write the query anew
    job_query        the query of a `sql` job, looked at before it runs
    spark_dialect    a query in Spark's dialect, checked again as what Spark will read
    spark_functions  words that SQL for Spark may hold outside of quotes
    virtual          virtual datasets: SQL in the place of a name

`gate` parses a query, allows what is listed and writes it anew; `functions` is the list. `virtual` puts the SQL of
virtual datasets, which passed the same gate, in the place of their names. `spark_dialect` writes what passed for
Spark, and checks that again by the lists of `spark_functions`. Queries and deploys share all of it.
"""
