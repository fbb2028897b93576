"""Channels: how a message reaches people and other services. Nothing here knows of Postgres, or of what an alert is.

    Message ──channel's own form──► webhook, Slack, email, PagerDuty ──► Delivered, Retry or Dead

A message has a key that stays the same however often it is sent, so whoever receives it twice can tell. What a channel
may reach is decided by `http_service.outgoing`: https or TLS, public addresses, no redirects. Secrets are referred to
as `${secret:NAME}`; the values are handed in for one call, and an outcome never repeats them. Data is put into
documents as values, never into their text, and never into headers.

The other side decides the outcome. 2xx is delivered, from the moment its status is known. 408, 425, 429, 5xx, a
time-out and a broken connection are tried again, not before `Retry-After`. Everything else is dead: to send it again
would not help. For mail, 4xx is tried again and 5xx is dead.

    connections    how many messages are sent at once, and whose turn it is
    breaker        how fast a channel is used, and when it is left alone for a while
    outcome        what became of a message
    posting        JSON by POST, and what the answer means
    secret_values  values of secrets for one call, and texts without them
    sending        all channels: their configs are checked, their messages are sent
    signatures     who sent a webhook, and when, as the receiver can check it
    templates      placeholders in texts and in JSON documents
"""
