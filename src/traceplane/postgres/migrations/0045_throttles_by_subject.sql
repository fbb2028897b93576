-- For throttles of each subject, which count what was sent about it in a while. The hash is short, whatever the subject.

create index alert_events_sent_about on alert_events (org_id, dag, alert, md5(subject::text), found_at)
  where suppressed is null;
