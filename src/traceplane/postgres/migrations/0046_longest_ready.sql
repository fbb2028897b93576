-- Messages are sent in the order in which they became ready. One index serves that; two, by number and by time, left the
-- choice to statistics, and a plan that sorted all that waited for each claim.

drop index alert_deliveries_waiting;
drop index alert_deliveries_ready;
create index alert_deliveries_ready on alert_deliveries (channel_id, ready_at, number) where state = 'waiting';
