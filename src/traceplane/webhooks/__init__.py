"""Webhook sources: what a delivery must look like, and how its body becomes rows. Nothing here does any I/O.

    POST /hooks/{org}/{path} ──signature, then body, then key──► a numbered row of the source's deliveries, an event

The gateway receives deliveries and commits them; a job with the operator `webhook_rows`, or one with the user's own
operator, turns each of them into rows. Signatures are checked on the raw bytes, before anything is parsed.

    bodies      JSON and form bodies as text and values; JSON pointers into them
    config      a webhook source as deployed
    rows        the operator that turns deliveries into typed rows
    signatures  who signed a delivery, and when: HMAC schemes, and the shapes of GitHub, Stripe and Slack
    specs       the operators, as listed in the catalog
"""
