"""Sends the project's code along with user functions that Spark runs.

Spark's Python workers import modules by name and survive tasks, so two versions of a module would clash there, and the
first one would win. So everything from a job's own modules is pickled by value, including the modules themselves;
installed packages are imported by name, as usual.
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
    """Applies from now on to this process, which runs tasks of only one job."""
    # The public API takes modules that are already imported, but a function may import more when it is called.
    cloudpickle._PICKLE_BY_VALUE_MODULES.update(modules)
    cloudpickle.CloudPickler._dispatch_table[types.ModuleType] = _reduce_module
    cloudpickle.CloudPickler._dispatch_table[_Cached] = _reduce_cached


def _reduce_module(module: types.ModuleType) -> Any:
    if cloudpickle._should_pickle_by_reference(module):
        return cloudpickle.subimport, (module.__name__,)
    # Its names are passed as state rather than as an argument, so that modules may refer to each other.
    names = {name: value for name, value in vars(module).items() if name not in _NOT_SHIPPED}
    return types.ModuleType, (module.__name__,), names


def _reduce_cached(cached: Any) -> Any:
    """Pickle treats a cache as part of its module and would import it by name."""
    if not _is_shipped(cached):
        return cached.__reduce__()
    parameters = cached.cache_parameters()
    return _Cached, (cached.__wrapped__, parameters["maxsize"], parameters["typed"], functools._CacheInfo)


def _is_shipped(thing: Any) -> bool:
    name = getattr(thing, "__module__", None)
    return name is not None and cloudpickle._is_registered_pickle_by_value(types.ModuleType(name))
