"""How this package's inner loops become machine code. Keeps their types: numba's own decorators have none."""

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


def _name_nothing_special() -> None:
    """llvmlite's library has an answer to every name, `__dict__` too. vLLM 0.32 on a CPU reads that of all that is
    imported when it starts, and would not start in a process that has loaded numba."""
    kind = type(ffi.lib)
    answer = kind.__getattr__

    def look_up(library: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return answer(library, name)

    kind.__getattr__ = look_up


_name_nothing_special()


def native(function: Function) -> Function:
    """Compiled at the first call and kept on disk; runs without the interpreter's lock."""
    return cast(Function, numba.njit(function, cache=True, nogil=True, error_model="numpy"))


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def _pointer(context: Any, address: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(32).as_pointer())

    return types.CPointer(types.int32)(types.int64), generate


@native
def memory(address: int, count: int) -> NDArray[np.int32]:
    """The int32 array of `count` entries that lies at an address; whoever calls keeps its owner alive."""
    array: NDArray[np.int32] = numba.carray(_pointer(address), (count,))
    return array


@native
def grid(address: int, rows: int, columns: int) -> NDArray[np.int32]:
    """The same as a matrix, row by row."""
    array: NDArray[np.int32] = numba.carray(_pointer(address), (rows, columns))
    return array
