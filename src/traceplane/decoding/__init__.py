"""Reads operators' Parquet files in processes that may crash on them.

A file of a few hundred bytes can take gigabytes to read: one long text repeated by a dictionary, lists whose lengths
are written as runs, pages compressed a thousandfold. The sizes in a file are only its writer's claims, so trusted
processes never open such a file. A *decoder* does: it has limits on memory and time, and can reach nothing but the file
that it is given. It converts the file and sends the result as bytes; its owner counts them and stops when there are too
many.

    messages         messages between decoder and owner
    decoder_process  a decoder, and the server that forks it
    decoder_pool     the owner's side: a few decoders, reused from file to file and replaced when they fail
    hot_rows         rows checked against their hot table, as CSV
    signals          rows as the signals that triggers read
    kept_rows        the rows at some positions, as Parquet

A decoder that fails on a file is ended and reads no other. One that ends in the middle, for whatever reason, costs
nothing: a new one reads the file again, and only the verdict of a new one on a file's size counts.
"""
