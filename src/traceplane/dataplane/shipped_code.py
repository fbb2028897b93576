"""User functions that Spark runs take their project's code with them.

Spark's Python workers import modules by name and live on between tasks, so two versions of a module would meet
there, and the first one would win. So whatever comes from a job's own modules is pickled by value, the modules
themselves too; what is installed is imported there by name, as always.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable
from typing import Any

from pyspark.cloudpickle import cloudpickle as untyped_cloudpickle

cloudpickle: Any = untyped_cloudpickle
_Cached = type(functools.lru_cache(lambda: None))
_NOT_SHIPPED = frozenset({"__builtins__", "__cached__", "__loader__", "__spec__"})


def ship(modules: Iterable[str]) -> None:
    """From now on, for this process: it runs tasks of one job only."""
    # The public way takes modules that are imported already, and a function may import more when it is called.
    cloudpickle._PICKLE_BY_VALUE_MODULES.update(modules)
    cloudpickle.CloudPickler._dispatch_table[types.ModuleType] = _reduce_module
    cloudpickle.CloudPickler._dispatch_table[_Cached] = _reduce_cached


def _reduce_module(module: types.ModuleType) -> Any:
    if cloudpickle._should_pickle_by_reference(module):
        return cloudpickle.subimport, (module.__name__,)
    # Its names follow as state rather than as an argument, so that modules may refer to each other.
    kept = {name: value for name, value in vars(module).items() if name not in _NOT_SHIPPED}
    return types.ModuleType, (module.__name__,), kept


def _reduce_cached(cached: Any) -> Any:
    """A cache counts as part of its module to pickle, which would have it imported by name."""
    if not _is_shipped(cached):
        return cached.__reduce__()
    asked = cached.cache_parameters()
    return _Cached, (cached.__wrapped__, asked["maxsize"], asked["typed"], functools._CacheInfo)


def _is_shipped(thing: Any) -> bool:
    name = getattr(thing, "__module__", None)
    return name is not None and cloudpickle._is_registered_pickle_by_value(types.ModuleType(name))
