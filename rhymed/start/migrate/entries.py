"""What a table of settings consists of, and how it is applied. Pure.

An `Entry` reads settings of the other framework by their names and returns `Put`s (keys of ours) and `Note`s. A value
that only the running program knows never reaches it: the table names it instead, with the keys that remain to be set.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeAlias, TypeVar

from rhymed.core.text import short

T = TypeVar("T")
Verdict: TypeAlias = Literal["unknown", "unsupported", "different", "dropped"]

VERDICTS: dict[Verdict, str] = {
    "unknown": "to be set: not known without running the source",
    "unsupported": "not supported",
    "different": "done differently",
    "dropped": "dropped: not needed",
}
"""In the order of the report."""


@dataclass(frozen=True)
class Unknown:
    """A value that is known only when the program runs."""

    text: str  # the expression


UNSET: Final = object()
"""Value of a key that remains to be set."""


@dataclass(frozen=True)
class Put:
    """A key of ours."""

    key: str  # e.g. trainer.lr
    value: Any
    why: str = ""  # beyond "it was that setting"
    of: tuple[str, ...] = ()  # the settings that it comes from; empty: all that the entry names


@dataclass(frozen=True)
class Note:
    """A setting without a counterpart."""

    name: str
    verdict: Verdict
    reason: str


Item: TypeAlias = Put | Note


@dataclass(frozen=True)
class Settings:
    """Of the other framework."""

    framework: str  # in comments, e.g. TRL
    given: Mapping[str, Any]  # as the source has them
    defaults: Mapping[str, Any]  # for those that it leaves out

    def __getitem__(self, name: str) -> Any:
        return self.given[name] if name in self.given else self.defaults.get(name)

    def origin(self, names: Sequence[str]) -> str:
        """The comment next to a value: which settings it comes from. Empty: from a default."""
        given = [f"{brief(name)} = {short(self.given[name])}" for name in names if name in self.given]
        return ", ".join(given)

    def default(self, names: Sequence[str]) -> str:
        """The same, where the source has none of them."""
        known = next((brief(name) for name in names if name in self.defaults), "")
        return f"{self.framework}'s default of {known}" if known else ""


def brief(name: str) -> str:
    """As people abbreviate verl's names."""
    return name.removeprefix("actor_rollout_ref.")


@dataclass(frozen=True)
class Entry:
    reads: tuple[str, ...]
    writes: tuple[str, ...]  # keys that remain to be set if a value is not known
    translate: Callable[..., Iterable[Item]]  # the values, in the order of `reads`
    named: int = 0  # how many of `reads` the comment names; 0: all

    def unknown(self, settings: Settings) -> dict[str, str]:
        """Settings whose values are not known, and their expressions."""
        values = {name: settings[name] for name in self.reads}
        return {name: value.text for name, value in values.items() if isinstance(value, Unknown)}

    def apply(self, settings: Settings) -> Iterator[tuple[Item, str, bool]]:
        """Each item, where it comes from, and whether that is only a default."""
        for item in self.translate(*(settings[name] for name in self.reads)):
            names = (isinstance(item, Put) and item.of) or self.reads[: self.named or None]
            origin = settings.origin(names)
            yield item, origin or settings.default(names), not origin


def same(name: str, key: str, why: str = "") -> Entry:
    """The value as it is; None: left out."""
    return Entry((name,), (key,), lambda value: () if value is None else (Put(key, value, why),))


def flag(name: str, verdict: Verdict, reason: str) -> Entry:
    """A note, if the setting is switched on."""
    return Entry((name,), (), lambda value: (Note(name, verdict, reason),) if value else ())


def chosen(table: Mapping[Any, T], value: Any, setting: str, otherwise: str) -> Generator[Item, None, T]:
    """What the table has for the value of a setting; where it lacks that, what it has for `otherwise`, and a note."""
    if value not in table:
        yield Note(setting, "unsupported", f"there is no {value!r} here; it is read as {otherwise!r}")
    return table.get(value, table[otherwise])


def unless(name: str, harmless: Any, verdict: Verdict, reason: str) -> Entry:
    """A note, if the setting has another value than the harmless one."""
    return Entry((name,), (), lambda value: (Note(name, verdict, reason),) if value not in (None, harmless) else ())


@dataclass(frozen=True)
class Table:
    framework: str
    version: str  # whose defaults these are
    defaults: Mapping[str, Any]
    entries: Sequence[Entry]
    dropped: str  # patterns of names that no entry reads, and that nothing here needs
    silent: Sequence[str] = ()  # patterns of names that are not mentioned

    @property
    def names(self) -> set[str]:
        """Of the settings that its entries read."""
        return {name for entry in self.entries for name in entry.reads}

    def apply(self, given: Mapping[str, Any]) -> list[tuple[Item, str, bool]]:
        """As `Entry.apply`. A key whose setting is not known gets `UNSET`, and a note."""
        settings = Settings(self.framework, given, self.defaults)
        found: list[tuple[Item, str, bool]] = []
        missing: dict[tuple[str, str], list[str]] = {}
        for entry in self.entries:
            if unknown := entry.unknown(settings):
                for place in unknown.items():
                    missing.setdefault(place, []).extend(entry.writes)
            else:
                found += entry.apply(settings)
        for (name, text), keys in missing.items():
            keys = list(dict.fromkeys(keys))
            found += ((Put(key, UNSET, f"to be set: {brief(name)} is `{text}`"), "", False) for key in keys)
            found.append((Note(name, "unknown", f"it is `{text}`: set {' and '.join(keys)}"), "", False))
        return [*found, *((note, "", False) for note in self._rest(given))]

    def _rest(self, given: Mapping[str, Any]) -> Iterator[Note]:
        """Of the settings that no entry reads; those that are dropped in one note."""
        dropped = []
        for name in (one for one in given if one not in self.names):
            if any(fnmatchcase(name, pattern) for pattern in self.dropped.split()):
                dropped.append(name)
            elif not any(fnmatchcase(name, pattern) for pattern in self.silent):
                why = f"{self.framework} {self.version} has no such setting, as far as is known here"
                yield Note(name, "unsupported", why)
        if dropped:
            why = "rhymed does it in its own way, or it changes neither samples nor losses"
            yield Note(", ".join(dropped), "dropped", f"{why}; vLLM's arguments go into rollout.engine_args")


# What both frameworks have. Pure.

SINKS = ("wandb", "trackio", "mlflow")


def model_path(name: Any, setting: str) -> Iterator[Item]:
    """`setting`: that has the name."""
    if name:
        yield Put("model.path", name)
    else:
        yield Put("model.path", "MODEL", "to be set: a folder, a GGUF file or a hub id")
        yield Note(setting, "unknown", "the source names no model: set model.path")


def adapters(rank: int, alpha: float, targets: Any, settings: Sequence[str]) -> Iterator[Item]:
    """LoRA's. `settings`: that have these values."""
    yield Put("trainer.lora.rank", rank, of=(settings[0],))
    yield Put("trainer.lora.alpha", float(alpha), of=(settings[1],))
    if targets and targets != "all-linear":
        yield Put("trainer.lora.targets", [targets] if isinstance(targets, str) else list(targets), of=(settings[2],))


def sapo(loss: str, positive: float, negative: float) -> Iterator[Item]:
    """`loss`: other ones have no temperatures."""
    if loss == "sapo":
        yield Put("trainer.sapo_tau_pos", positive)
        yield Put("trainer.sapo_tau_neg", negative)


def sinks(given: Any, setting: str, others: Sequence[str]) -> Iterator[Item]:
    """`others`: that need no sink here."""
    names = [given] if isinstance(given, str) else list(given or ())
    names = list(SINKS) if names == ["all"] else names
    if known := [name for name in names if name in SINKS]:
        yield Put("metrics.sinks", known, "in addition to TensorBoard, metrics.jsonl and the dashboard")
    if unknown := [name for name in names if name not in (*SINKS, *others)]:
        why = f"there is no sink {', '.join(unknown)}; metrics.jsonl has every metric"
        yield Note(setting, "unsupported", why)


# Values as other frameworks write them. Pure.

NUMBER = re.compile(r"[+-]?(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d+)?")

OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def run_name(text: str) -> str:
    """As `run.name` takes it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._") or "run"


def typed(value: Any) -> Any:
    """YAML 1.1 reads 1e-6 as text; both frameworks read it as a number. Inside lists and maps, too."""
    if isinstance(value, str) and NUMBER.fullmatch(value.strip()):
        number = float(value)
        return int(number) if number.is_integer() and not re.search(r"[.eE]", value) else number
    if isinstance(value, list):
        return [typed(each) for each in value]
    if isinstance(value, dict):
        return {key: typed(each) for key, each in value.items()}
    return value


def arithmetic(text: str) -> int | None:
    """The value of `$((...))` in a shell script, numbers only; None: it has names in it."""
    try:
        value = _number(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None
    return int(value)


def _number(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        division = operator.floordiv if isinstance(node.op, ast.Div) else OPERATORS[type(node.op)]
        return division(_number(node.left), _number(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    raise ValueError("not a number")
