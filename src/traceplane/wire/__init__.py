"""What travels between processes, as types: one module for each contract.

control  the public API of the gateway
scalars  what the contracts share
tasks    the internal API, between the dispatcher and its workers
"""
