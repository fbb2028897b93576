-- What comes first within an incident is found by the incident alone. An index that begins with the channel invites the
-- planner to read all that waits for a channel, for each message that waits for it.

drop index alert_deliveries_in_order;
create index alert_deliveries_in_order on alert_deliveries (incident, number) where state = 'waiting';
