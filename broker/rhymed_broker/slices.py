"""Long operations in slices, so that an event loop can read its sockets in between. Pure.

A method decorated with `sliced` is a generator that yields between its slices and returns its result. Called as
usual, it does everything at once; `method.slices(…)` gives the generator, and whoever drives it decides when the next
slice begins. Invariant: how often an operation yields changes nothing that it does. Its object is in the middle of a
change while it is suspended: nothing else may read or change it then.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, overload

Owner = TypeVar("Owner")
Result = TypeVar("Result")
Item = TypeVar("Item")
Arguments = ParamSpec("Arguments")
Slices: TypeAlias = Generator[None, None, Result]

CHUNK = 1024  # samples in one slice: a few milliseconds


def whole(slices: Slices[Result]) -> Result:
    """All slices, one after another."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: Result = end.value
            return result


class Operation(Generic[Arguments, Result]):
    """A method of one object."""

    __slots__ = ("slices",)

    def __init__(self, slices: Callable[Arguments, Slices[Result]]) -> None:
        self.slices = slices

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return whole(self.slices(*args, **kwargs))


class sliced(Generic[Owner, Arguments, Result]):  # noqa: N801
    """Decorates a generator method."""

    def __init__(self, method: Callable[Concatenate[Owner, Arguments], Slices[Result]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, owner: None, kind: type[Owner]) -> sliced[Owner, Arguments, Result]: ...

    @overload
    def __get__(self, owner: Owner, kind: type[Owner]) -> Operation[Arguments, Result]: ...

    def __get__(self, owner: Owner | None, kind: type[Owner]) -> Any:
        return self if owner is None else Operation(MethodType(self._method, owner))


def slices_of(
    operation: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Slices[Result]:
    """Of an operation that may have slices: without them it is one slice."""
    if isinstance(operation, Operation):
        result: Result = yield from operation.slices(*args, **kwargs)
        return result
    return operation(*args, **kwargs)


def chunks(items: Sequence[Item], size: int = CHUNK) -> Iterator[Sequence[Item]]:
    """The items in order, so many at a time."""
    return (items[at : at + size] for at in range(0, len(items), size))
