"""SQL over published datasets: one SELECT, over granted relations, on one consistent set of generations.

    catalog       file lists of generations, kept between queries, and what is left of them for a query
    duckdb_types  DuckDB's names of Arrow's types, as manifests spell them (`str(type)`)
    engine        one query in a process of its own: what the server forks, and the server that forks it
    engines       the gateway's side of the engine: a server process that forks, and one conversation for each query
    hot_rows      rows of hot tables as files for one query
    lineage       which columns a query computes its columns from
    service       a query from its text to the pieces of its result, and the catalog that people look at

A query passes four lines, each of which denies by default:

1. `sql.gate` parses it with sqlglot, lets through only syntax, functions and relations that are listed, and writes it
   anew with names of its own for every relation. It is pure, and also says which values each relation is asked for.
2. `engine` has DuckDB parse what was written, and checks relations and functions again on DuckDB's own tree, so that
   two parsers would have to be fooled in the same way.
3. DuckDB itself is locked down: no file but the listed ones, no extension, no setting, bounded memory and spill.
4. It runs in a process of its own for each query, without environment, credentials or network (Landlock, seccomp),
   which is killed when the time is over or the caller is gone.

Pointers and file lists are read in one snapshot (`postgres.pinned`); the lists of a commit never change and are kept.
"""
