"""Compiles this package's inner loops with numba. Keeps their types, which numba's own decorators lose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from llvmlite.binding import ffi
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])


def _hide_special_names() -> None:
    """llvmlite's library returns something for every attribute, even `__dict__`. vLLM 0.32 on a CPU reads that of all
    imported objects when it starts, and would fail in a process that has loaded numba."""
    kind = type(ffi.lib)
    answer = kind.__getattr__

    def look_up(library: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return answer(library, name)

    kind.__getattr__ = look_up


_hide_special_names()


def native(function: Function) -> Function:
    """Compiles at the first call, caches on disk, and releases the interpreter's lock."""
    compiled = numba.njit(function, cache=True, nogil=True, error_model="numpy")
    cache = compiled._cache
    load = cache.load_overload

    def load_if_readable(signature: Any, context: Any) -> Any:
        try:
            return load(signature, context)
        except (ImportError, AttributeError):  # another release wrote it, whose types were in other modules
            cache.flush()
            return None

    cache.load_overload = load_if_readable
    return cast(Function, compiled)


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def _pointer(context: Any, address: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(32).as_pointer())

    return types.CPointer(types.int32)(types.int64), generate


@native
def memory(address: int, count: int) -> NDArray[np.int32]:
    """The int32 array of `count` entries at an address; the caller keeps its owner alive."""
    array: NDArray[np.int32] = numba.carray(_pointer(address), (count,))
    return array


@native
def grid(address: int, rows: int, columns: int) -> NDArray[np.int32]:
    """The same as a row-major matrix."""
    array: NDArray[np.int32] = numba.carray(_pointer(address), (rows, columns))
    return array
