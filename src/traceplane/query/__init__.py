"""SQL over published datasets: one SELECT, over granted relations, on one consistent set of generations.

On the gateway's side:

    catalog         file lists of generations, kept between queries, and which of their files a query reads
    datasets        the datasets of a query, read in one snapshot, and the parts that the caller may see
    duckdb_types    DuckDB's names of Arrow types, from their spelling in manifests (`str(type)`)
    engine_pool     a server that forks a process for each query, with a limit on concurrent ones
    hot_rows        rows of hot tables as files for one query
    job             a query as a Spark job
    lineage         which columns a query computes its columns from
    preparation     everything that a query needs before it runs
    service         a query from its text to the pieces of its result

Between the two:

    store_files     files in S3 that the process reads in parts, through its gateway
    wire            the messages between them

In a separate process for each query:

    encoders        the result in the requested format
    engine_process  the process of one query, and the server that forks it
    failures        why a query failed, in terms of its caller
    locked_duckdb   a DuckDB locked down to one query, and a second check of the query on DuckDB's own tree

A query passes four barriers, each of which denies by default:

1. `sql.gate` parses it with sqlglot, allows only listed syntax, functions and relations, and rewrites it with its own
   names for all relations. It is pure, and also returns the conditions on each relation.
2. `locked_duckdb` has DuckDB parse the rewritten query, and checks relations and functions again on DuckDB's own tree,
   so that an attack would have to fool two parsers in the same way.
3. DuckDB itself is locked down: only the listed files, no extensions, no settings, bounded memory and spill.
4. Each query runs in a separate process, without environment, credentials or network (Landlock, seccomp), which is
   killed on timeout or when the caller disconnects.

Pointers and file lists are read in one snapshot (`postgres.pinned`); a commit's file list never changes and is cached.
"""
