"""What a peer writes into any field of any message: texts are refused or printable, numbers are in their range."""

import math
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from rhymed.core.messages import Heartbeat, JournalEntry, Part, Role, SampleId, Score
from rhymed.core.messages.fields import MOST, Count, Exact, PromptId, Step, WorkerName
from rhymed.core.messages.names import role_of, wrong_name
from tests.core.messages.test_messages import STRUCTS, make

MEGABYTE = 1 << 20
HOSTILE = (
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x9b2J",
    "two\nlines\r",
    "\x7f\x00",
    "\u202egnp.exe",
    "\u2066a\u2069\u200e\u200f\u200b\ufeff",
    "line\u2028paragraph\u2029",
    "x" * MEGABYTE,
    "\n" * MEGABYTE,
)
LONGEST = 4000
VALUE = "value"  # in a path: of a map
QUEUES = ("metrics", "oldest_s", "store", "val")


def leaves(kind: Any, what: type) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """(path, type) of every value of type `what` in a struct, as plain data. `dict`, VALUE: keys, values of a map."""
    for field in msgspec.structs.fields(kind):
        hint = typing.get_type_hints(kind, include_extras=True)[field.name]
        yield from inside(hint, (field.name,), what)


def inside(hint: Any, path: tuple[Any, ...], what: type) -> Iterator[tuple[tuple[Any, ...], Any]]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is what or (origin is typing.Annotated and args[0] is what):
        yield path, hint
    elif origin is typing.Annotated:
        yield from inside(args[0], path, what)
    elif origin is list:
        yield from inside(args[0], (*path, 0), what)
    elif origin is tuple:
        for place, arg in enumerate(args):
            yield from inside(arg, (*path, place), what)
    elif origin is dict:
        yield from inside(args[0], (*path, dict), what)
        yield from inside(args[1], (*path, VALUE), what)
    elif origin is not typing.Literal:
        for arg in args:
            yield from inside(arg, path, what)


def params(what: type) -> list[Any]:
    return [
        pytest.param(kind, path, hint, id=f"{kind.__name__}-{'.'.join(str(step) for step in path)}")
        for kind in STRUCTS
        for path, hint in leaves(kind, what)
    ]


FIELDS, INTS, FLOATS = params(str), params(int), params(float)


def put(tree: Any, path: tuple[Any, ...], text: Any) -> Any:
    if not path:
        return text
    if path[0] is dict:
        return {text: next(iter(tree.values()))}
    if path[0] == VALUE:
        return {next(iter(tree)): put(next(iter(tree.values())), path[1:], text)}
    tree = tree.copy()
    tree[path[0]] = put(tree[path[0]], path[1:], text)
    return tree


def written(message: Any) -> list[str]:
    """All texts in plain data, keys of maps included."""
    if isinstance(message, str):
        return [message]
    if isinstance(message, dict):
        return [text for item in message.items() for part in item for text in written(part)]
    return [text for part in message for text in written(part)] if isinstance(message, list | tuple) else []


@pytest.mark.parametrize(("kind", "path", "hint"), [field for field in FIELDS if field.values[2] is not Exact])
def test_hostile_text_is_refused_or_made_printable(kind: Any, path: tuple[Any, ...], hint: Any) -> None:
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(make(kind)))
    for text in HOSTILE:
        try:
            message = msgspec.msgpack.decode(msgspec.msgpack.encode(put(plain, path, text)), type=kind)
        except msgspec.ValidationError:
            continue
        found = written(msgspec.to_builtins(message))
        assert all(len(one) <= LONGEST for one in found), path
        if hint is not PromptId:  # it is shown by `SampleId`, see below
            assert all(one.isprintable() for one in found), (path, text[:40])


def test_which_texts_are_exact() -> None:
    exact = {f"{field.values[0].__name__}.{field.values[1][-1]}" for field in FIELDS if field.values[2] is Exact}
    said = {"Answer.said", "Answer.state", "SampleInfo.0", "SampleInfo.state"}  # JSON
    stops = {"Answer.0"}  # strings that the response is compared with
    assert exact == {"OpenRun.fingerprint", "PromptRow.row", "Manifest.path"} | said | stops


def test_every_text_has_a_type_that_says_how_it_is_checked() -> None:
    plain = [field.id for field in FIELDS if field.values[2] is str]
    assert not plain, f"give these one of the types of rhymed.core.messages.fields: {plain}"


@pytest.mark.parametrize(("kind", "path", "hint"), INTS)
def test_a_number_is_in_its_range(kind: Any, path: tuple[Any, ...], hint: Any) -> None:
    assert hint is not int, "give it one of the types of rhymed.core.messages.fields"
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(make(kind)))
    refused = [MOST + 1, -MOST - 1, (1 << 64) - 1] + [-2] * (hint is not Step) + [-1] * (hint is Count)
    for number in refused:
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(put(plain, path, number)), type=kind)


@pytest.mark.parametrize(("kind", "path", "hint"), [field for field in FLOATS if field.values[2] is not float])
def test_an_amount_is_finite_and_not_negative(kind: Any, path: tuple[Any, ...], hint: Any) -> None:
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(make(kind)))
    for number in (math.nan, math.inf, -math.inf, -0.5, 1e300):
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(put(plain, path, number)), type=kind)


def test_which_floats_may_be_anything() -> None:
    """Rewards and metrics are checked where they are used, because a NaN of theirs is a finding."""
    free = {field.id for field in FLOATS if field.values[2] is float}
    rewards = {"Score-reward", "Score-parts.value", "SampleInfo-reward"}
    rewards |= {"SampleInfo-earned", "Answer-reward", "Samples-parts.0.value", "Score-metrics.value"}
    rewards |= {"SampleInfo-turn_rewards.0", "Score-token_rewards.0.1", "Samples-token_rewards.0.0.1"}
    metrics = {"Heartbeat-stats.value", "WorkerRow-stats.value", "TrainStep-metrics.value", "Trained-metrics.value"}
    shown = {"JournalEntry-reward"} | {f"Queues-{name}.value" for name in QUEUES}
    assert free == rewards | metrics | shown


def test_half_a_surrogate_pair_is_made_printable_before_it_is_sent() -> None:
    score = Score(id=SampleId(0, "a", 0), error="bad: \ud800")
    assert score.error == "bad: \\ud800"
    msgspec.msgpack.encode(score)


def test_a_sample_is_shown_without_what_its_prompt_hides() -> None:
    assert str(SampleId(1, "\x1b[2J\u202ea", 3)) == "1/\\x1b[2J\\u202ea/3"


def test_texts_that_are_printable_stay_as_they_are() -> None:
    stats = {"rollout/tokens_per_s": 3.0}
    beat = Heartbeat(worker="rollout-0", phase="décode 3/4 …", stats=stats)
    assert beat.phase == "décode 3/4 …"
    assert beat.stats is stats
    entry = JournalEntry(id=SampleId(0, "a", 0), state="dropped", reason="line 1\n\tline 2")
    assert entry.reason == "line 1\\n line 2"


def test_more_numbers_than_any_worker_has_are_refused() -> None:
    stats = {f"m/{number}": 1.0 for number in range(5000)}
    sent = msgspec.msgpack.encode(Heartbeat(worker="rollout-0", stats=stats))
    with pytest.raises(msgspec.ValidationError, match="length"):
        msgspec.msgpack.decode(sent, type=Heartbeat)


class _Named(Part, frozen=True):
    worker: WorkerName


@pytest.mark.parametrize("name", ["rollout-0", "rollout@gpu-3.example.org:4711", "trainer", "W", "a" * 64])
def test_names_of_workers(name: str) -> None:
    assert msgspec.convert({"worker": name}, _Named).worker == name


@pytest.mark.parametrize("name", ["", "-a", "a b", "a\n", "a/b", "..", "a" * 65, "r\u00f6llout-0", "rollout-0\x1b"])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"worker": name}, _Named)
    assert wrong_name("rollout", name)


@pytest.mark.parametrize(
    ("name", "role"), [("rollout-0", "rollout"), ("trainer", "trainer"), ("reward@h:1", "reward")]
)
def test_a_name_that_begins_with_a_role_is_of_that_role(name: str, role: Role) -> None:
    assert role_of(name) == role
    assert not wrong_name(role, name)
    for other in {"rollout", "reward", "trainer"} - {role}:
        assert "belongs to" in wrong_name(typing.cast(Role, other), name)


def test_other_names_are_of_any_role() -> None:
    for name in ("gpu1", "rewarding", "trainers"):
        assert role_of(name) is None
        assert not wrong_name("rollout", name)
