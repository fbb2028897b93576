"""The channels, each with its config, the check of it, and how a message is sent.

mail       email over SMTP, with STARTTLS or TLS from the beginning
pagerduty  PagerDuty's Events API v2
slack      incoming webhooks of Slack, and of services that take the same JSON
webhook    any service that takes JSON
"""
