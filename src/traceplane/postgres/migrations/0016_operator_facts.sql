-- What a job's tasks are handed stands in its definition, so that the dispatcher need not know its operator.

update jobs set definition = definition || '{"needs_emission": true}' where operator = 'range_ingest';

update jobs set definition = definition || jsonb_build_object(
  'history',
  case jsonb_typeof(definition->'config'->'history')
    when 'number' then least(greatest((definition->'config'->>'history')::numeric::bigint, 0), 1000000)
    else 250
  end)
where operator = 'signal_generate';

update jobs set definition = definition || '{"deletes_inputs": true}'
where operator = 'compact' and definition->'config'->'delete_after_commit' = 'true';
