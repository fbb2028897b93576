"""Parquet files of operators, read by processes that may go under with them.

A file of some hundred bytes can take gigabytes to read: one long text that is repeated by a dictionary, lists whose
lengths are written as runs, pages that are compressed a thousandfold. What a file says of its own sizes is its
writer's word, so the trusted processes look into no such file. A *decoder* does, which has a limit on its memory and
its time and can reach nothing but the file it is handed. It makes of the file what is wanted and sends that as bytes,
which its owner counts, and stops when there are too many.

    messages     what the two say to each other
    decoder      the process, and the server that forks it
    decoders     the owner's side: a few decoders that are kept from file to file, and forked anew when they fail
    hot_rows     rows checked against their hot table, as CSV
    signals      rows as the signals that triggers read
    kept_rows    the rows at some positions, as Parquet

A decoder that fails a file is ended and reads no other. One that ends in the middle, whoever ended it, costs nothing:
the file is read again by a new one, and only what a new one says of a file's size counts.
"""
