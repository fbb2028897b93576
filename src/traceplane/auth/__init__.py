"""Who is calling, and what they may do.

    access           allow or deny, as pure functions: the token in a header, and the role behind a user token
    callers          who calls the public API, with what rights, and the database as they may see it
    capability       capabilities: what the tasks of one claim may read and write, signed so that no lookup is needed
    keyring          the keys that sign capabilities, and how they are rotated
    master_key_file  the file of master keys, which seal signing keys and secrets at rest
    opaque           user and worker tokens: random strings, stored only as hashes
    rights           who may read and write a dataset: the roles that it names, and the patterns of a token
    roles            roles, and the rights that they give: three reserved ones, and those of an organization
    second_look      an unknown token may be seconds old, so the stored ones are read again before it is rejected
    store            keys and tokens in Postgres: what is stored, sealed or hashed, and how each is rotated

Three principals that cannot become each other:

    user     opaque `tpu_…` token with a role       the public API
    worker   opaque `tpw_…` token                   claiming tasks
    task     capability: a signed, expiring JWT     the attempts of one claim, the generations they name

Opaque tokens are looked up by hash, so they can be revoked immediately. A capability is checked by its
signature alone, so a task-scoped call needs no lookup; it ends by expiring, or with its signing key.

All but `callers`, `rights` and `store` is pure: records, keys and `now` are arguments, and a rejection is an error with
a stable `token.*` code that never repeats the token. When in doubt (no record, no key, an unreadable claim) the answer
is no.
"""
