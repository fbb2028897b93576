-- Refused queries are rows of the audit log, like all refusals.
drop table query_denials;
