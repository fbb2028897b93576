"""SQL over published datasets: one SELECT, over granted relations, on one consistent set of generations.

A query passes four lines, each of which denies by default:

1. `gate` parses it with sqlglot, lets through only syntax, functions and relations that are listed, and writes it anew
   with names of its own for every relation. It is pure, and also says which values each relation is asked for.
2. `engine` has DuckDB parse what was written, and checks relations and functions again on DuckDB's own tree, so that
   two parsers would have to be fooled in the same way.
3. DuckDB itself is locked down: no file but the listed ones, no extension, no setting, bounded memory and spill.
4. It runs in a process of its own for each query, without environment, credentials or network (Landlock, seccomp),
   which is killed when the time is over or the caller is gone.

`pinning` reads pointers and file lists in one snapshot; `catalog` keeps file lists, which never change per commit;
`engines` owns the processes; `service` puts these together.
"""
