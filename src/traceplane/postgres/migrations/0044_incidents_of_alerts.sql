-- Whether an incident is over is asked for each message that is replayed, and each group that loses an alert.

create index alert_events_of_incident on alert_events (org_id, incident);
