"""Words that SQL for Spark may contain outside quotes: functions, types, units and keywords.

Anything not listed is rejected, so a newer Spark or sqlglot makes nothing available by itself. Functions are those that
compute a value from their arguments, and that queries are translated to. Left out on purpose are those that call Java
(`reflect`, `java_method`), reveal the engine, its session or its files (`version`, `current_user`, `input_file_name`),
keep state, or return a value that cannot be computed again (`uuid`).
"""

from __future__ import annotations

_SAME_AS_IN_DUCKDB = """
abs acos acosh aggregate any_value approx_count_distinct array_agg array_append array_contains array_distinct
array_intersect array_position array_prepend array_sort ascii asin asinh atan atan2 atanh avg base64 bin bit_and
bit_count bit_length bit_or bit_xor bool_and bool_or cardinality cbrt ceil ceiling char_length character_length chr
coalesce concat concat_ws contains corr cos cosh cot count count_if covar_pop covar_samp cume_dist current_date
date_add date_diff date_part date_sub date_trunc datediff datepart day dayname dayofmonth dayofweek dayofyear decode
degrees dense_rank element_at encode exp factorial filter first first_value flatten floor greatest hash hex hour if
ifnull instr isnan jaro_winkler_similarity json_array_length kurtosis lag last last_day last_value lcase lead least
left len length levenshtein listagg ln log log10 log2 lower lpad ltrim make_date make_timestamp map map_concat
map_entries map_from_entries map_keys map_values max max_by md5 mean median min min_by minute mod mode month monthname
now nth_value ntile nullif octet_length percent_rank pi position pow power printf quarter radians rank reduce
regexp_extract regexp_extract_all regexp_replace regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope
regr_sxx regr_sxy regr_syy repeat replace reverse right round row_number rpad rtrim second sha1 sign sin sinh skewness
split split_part sqrt stddev stddev_pop stddev_samp string_agg substr substring sum tan tanh to_json to_timestamp
translate trim trunc typeof ucase unhex upper url_decode url_encode var_pop var_samp variance weekday weekofyear year
"""
_TRANSLATED_TO = """
array array_join array_max array_min cast collect_list current_timestamp date_format endswith exists explode extract
format_string from_unixtime from_utc_timestamp get_json_object getbit json_object_keys localtimestamp locate
map_from_arrays percentile percentile_approx posexplode rand sequence sha sha2 shiftleft shiftright size slice
sort_array startswith struct timestamp_micros timestamp_millis transform try_cast unbase64 unix_timestamp zip_with
"""
_TYPE_NAMES = """
array bigint binary boolean byte char date decimal double float int interval long map short smallint string struct
timestamp timestamp_ltz timestamp_ntz tinyint varchar
"""
_UNIT_NAMES = """
year years yearofweek quarter quarters month months week weeks day days dayofweek dayofweek_iso dow dayofyear doy
hour hours minute minutes second seconds millisecond milliseconds microsecond microseconds
"""
_KEYWORDS = """
all and anti as asc between both by case cross cube current current_date current_timestamp desc distinct div
else end escape except exists false filter first following from full group grouping having ignore ilike in inner
intersect interval is join last lateral leading left like limit localtimestamp natural not null nulls offset on or
order outer over partition percent preceding range recursive repeatable respect right rlike rollup row rows select
semi sets tablesample then to trailing true unbounded union using values view when where window with within
"""
_SESSION_COLUMNS = "current_date current_time current_timestamp current_user grouping__id session_user user"

FUNCTIONS = frozenset((_SAME_AS_IN_DUCKDB + _TRANSLATED_TO).split())
GRAMMAR = frozenset({"cast", "try_cast", "extract", "exists", "filter"})
"""Part of Spark's grammar: its function catalog need not know them."""

TYPES = frozenset(_TYPE_NAMES.split())
UNITS = frozenset(_UNIT_NAMES.split())
KEYWORDS = frozenset(_KEYWORDS.split())

COLUMNS_OF_THE_SESSION = frozenset(_SESSION_COLUMNS.split())
"""Spark takes these for functions of its session if no relation has a column of the name, quoted or not."""
