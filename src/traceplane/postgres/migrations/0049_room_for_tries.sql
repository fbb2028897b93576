-- A message is written a second time when it is claimed, with nothing in it that an index knows. If there is room on its
-- page, no index has to be told.

alter table alert_deliveries set (fillfactor = 50);
