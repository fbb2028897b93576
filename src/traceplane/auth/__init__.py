"""Who is calling, and what that lets them do.

Three principals that cannot become each other:

    user     opaque `tpu_…` token with a role       the public API
    worker   opaque `tpw_…` token                   claiming tasks
    task     capability: a signed, expiring JWT     the attempts of one claim, the generations they name

Opaque tokens are looked up by hash, so they can be revoked at once. A capability is checked by its
signature alone, so a task-scoped call needs no lookup; it ends by expiring, or with its signing key.

All but `store` is pure: records, keys and `now` come in as arguments, and a refusal is an error with
a stable `token.*` code that never repeats the token. When in doubt (no record, no key, an unreadable
claim) the answer is no.
"""
