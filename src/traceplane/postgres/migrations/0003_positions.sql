-- Commits that overlap: which rows of an older one are still read.

-- The column that says to which position a row belongs, if the dataset has one.
alter table generations add column position_column text;

-- Positions for which newer commits took the place of this one. A commit that has none left is superseded.
alter table dataset_commits add column hidden int8multirange;
