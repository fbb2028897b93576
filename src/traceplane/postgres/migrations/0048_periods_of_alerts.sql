-- An alert may have other periods in another version, such as months instead of days: positions of the two are not
-- compared as they are.

-- Of the position, such as `day Europe/Berlin`; null: of an alert that was found before this column existed.
alter table alert_events add column periods text;
