-- A browser's token ends with the one whose link signed the browser in, however that one ends.
alter table access_tokens add column made_from uuid references access_tokens (token_id) on delete cascade;
create index access_tokens_made_from on access_tokens (made_from) where made_from is not null;
