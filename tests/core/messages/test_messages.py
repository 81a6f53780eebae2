"""Every struct with made-up values in all of its fields, over the wire's own encoding."""

import inspect
import types
import typing
from typing import Any

import msgspec
import pytest

from rhymed.core import messages
from rhymed.core.messages import (
    Message,
    Part,
    Reply,
    SampleId,
    ToBroker,
    ToEnvironment,
    ToReward,
    ToRollout,
    ToStore,
    ToTrainer,
    ToWeights,
)

Anything = ToBroker | ToRollout | ToEnvironment | ToReward | ToTrainer | ToStore | ToWeights | Reply

STRUCTS = [
    kind
    for _, kind in inspect.getmembers(messages, inspect.isclass)
    if issubclass(kind, Message | Part) and kind not in (Message, Part)
]
BODIES = [kind for kind in STRUCTS if issubclass(kind, Message)]


def value(kind: Any) -> Any:
    """A value that is not the field's default."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        refuses_accents = any(isinstance(mark, msgspec.Meta) and mark.pattern for mark in args[1:])
        return "rollout-0" if refuses_accents else value(args[0])
    if origin is typing.Literal:
        return args[-1]
    if origin in (types.UnionType, typing.Union):
        return value(args[0])
    if origin is list:
        return [value(args[0])] * 2
    if origin is tuple:
        return tuple(value(arg) for arg in args)
    if origin is dict:
        return {value(args[0]): value(args[1])}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return make(kind)
    return {int: 2**40, float: 1.5, str: "t\u00e9xt", bytes: b"\0\xff", bool: True}[kind]


def make(kind: Any) -> Any:
    hints = typing.get_type_hints(kind, include_extras=True)
    return kind(**{field.name: value(hints[field.name]) for field in msgspec.structs.fields(kind)})


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
def test_every_struct_round_trips(kind: Any) -> None:
    made = make(kind)
    expected = Anything if issubclass(kind, Message) else kind
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=expected) == made


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
def test_unknown_and_missing_fields_are_refused(kind: Any) -> None:
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(make(kind)))
    with pytest.raises(msgspec.ValidationError, match="unknown field `surprise`"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(plain | {"surprise": 1}), type=kind)
    for field in msgspec.structs.fields(kind):
        less = {name: value for name, value in plain.items() if name != field.name}
        if field.required:
            with pytest.raises(msgspec.ValidationError, match=f"missing required field `{field.name}`"):
                msgspec.msgpack.decode(msgspec.msgpack.encode(less), type=kind)


def test_every_body_is_in_a_union_under_its_own_tag() -> None:
    assert set(typing.get_args(Anything)) == set(BODIES)
    tags = [kind.__struct_config__.tag for kind in BODIES]
    assert len(set(tags)) == len(tags)


def test_bodies_are_maps_with_their_type() -> None:
    for kind in BODIES:
        plain = msgspec.msgpack.decode(msgspec.msgpack.encode(make(kind)))
        assert plain["type"] == kind.__struct_config__.tag


def test_sample_ids_sort_by_step_prompt_index_and_print_as_a_path() -> None:
    ids = [SampleId(1, "a", 0), SampleId(0, "b", 1), SampleId(0, "b", 0), SampleId(0, "a", 2)]
    assert [str(id) for id in sorted(ids)] == ["0/a/2", "0/b/0", "0/b/1", "1/a/0"]
    assert len({SampleId(0, "a", 0), SampleId(0, "a", 0)}) == 1
