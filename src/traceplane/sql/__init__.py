"""SQL that people write, as text: what of it is let through, and what datasets it reads. Pure.

`gate` parses a query, allows what is listed and writes it anew; `functions` is the list. `virtual` puts the SQL of
virtual datasets, which passed the same gate, in the place of their names. `spark_dialect` writes what passed for
Spark, and checks that again by the lists of `spark_functions`. Queries and deploys share all of it.
"""
