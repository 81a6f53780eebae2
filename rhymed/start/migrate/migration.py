"""From sources to a translation: their framework, their settings, and its table."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rhymed.core.config import Config
from rhymed.core.config.load import load_config
from rhymed.core.errors import ConfigError
from rhymed.core.text import toml_key, toml_value
from rhymed.start.migrate.entries import UNSET, VERDICTS, Item, Note, Put, Table, Unknown, typed
from rhymed.start.migrate.sources import hydra, is_verl, options, read_yaml, verl_settings, words
from rhymed.start.migrate.trl.copies import conditional
from rhymed.start.migrate.trl.rows import script_rows, yaml_rows
from rhymed.start.migrate.trl.script import CONFIGS, Script, settings, trainer_call, used_arguments
from rhymed.start.migrate.trl.table import TRL
from rhymed.start.migrate.trl.tools import named_rewards, script_rewards, script_tools
from rhymed.start.migrate.verl.parts import CLASSES, ENABLE, class_tools
from rhymed.start.migrate.verl.table import VERL

APART = (
    *("dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split"),
    *("reward_funcs", "reward_weights", "config"),
)
"""Settings of `trl grpo` that are translated without the table."""
TEMPLATE = "data.apply_chat_template_kwargs"  # a map, of which hydra sets each entry
SHELL = (".sh", ".bash", ".txt", ".slurm", ".sbatch")


@dataclass(frozen=True)
class Migration:
    framework: str
    version: str
    puts: dict[str, tuple[Any, str]]  # key of ours -> value, comment
    notes: list[Note]  # in the order of `VERDICTS`
    modules: dict[Path, str]  # files for what is copied from a script, and their texts

    @property
    def values(self) -> dict[str, Any]:
        """Of the keys that are set."""
        return {key: value for key, (value, _) in self.puts.items() if value is not UNSET}


def migrate(sources: Sequence[str], out: Path, gpus: int | None = None) -> Migration:
    """`sources`: files, and settings like `data.train_batch_size=64`; later ones win. `out`: the file of the
    configuration, next to which the functions of a script will be: OUT_rewards.py, OUT_tools.py. `gpus` of a machine:
    None as the source has it. Raises `ConfigError`."""
    found = _Found()
    for source in sources:
        found.read(source)
    if gpus is not None:
        found.given["processes"] = gpus
    table = found.table
    assert table is not None, "each source is of one of them"
    items = [*table.apply(found.for_table()), *((item, "", False) for item in found.apart(out))]
    return Migration(table.framework, table.version, _puts(items), _notes(items), found.modules)


class _Found:
    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.table: Table | None = None
        self.script: Script | None = None
        self.modules: dict[Path, str] = {}

    def read(self, source: str) -> None:
        path = Path(source)
        if not path.is_file():
            self._override(source)
        elif path.suffix == ".py":
            self.script = Script(path)
            self._merge(TRL, settings(self.script), source)
        elif path.suffix in (".yaml", ".yml"):
            tree = read_yaml(path)
            if is_verl(tree):
                self._merge(VERL, verl_settings(tree), source)
            else:
                self._merge(TRL, typed(tree), source)
        elif path.suffix in SHELL or path.suffix == "":
            found = words(path.read_text())
            dotted, given = hydra(found), options(found)
            if not dotted and not (TRL.names & given.keys()) and not self._of_script(given):
                raise ConfigError(f"{source} has no settings of TRL's GRPOConfig or of verl's main_ppo")
            self._merge(VERL if dotted else TRL, dotted or self._beside_script(given), source)
        else:
            raise ConfigError(f"{source}: a *.py, *.yaml or *.sh is read, or settings like data.train_batch_size=64")

    def _override(self, source: str) -> None:
        if "=" not in source:
            what = "a folder; name a file" if Path(source).is_dir() else f"no such file (relative to {Path.cwd()})"
            raise ConfigError(f"{source}: {what}")
        dotted = hydra([source])
        self._merge(VERL if dotted else TRL, dotted or self._beside_script(options([f"--{source}"])), source)

    def _of_script(self, given: dict[str, Any]) -> dict[str, Any]:
        """Arguments of the script's own command line."""
        known = self.script.arguments if self.script is not None else {}
        return {name: value for name, value in given.items() if name in known}

    def _beside_script(self, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments that are not the script's own; the script is read again with the values of its own."""
        if self.script is None or not (own := self._of_script(given)):
            return given
        self.script.arguments |= own
        self.given |= settings(self.script)
        return {name: value for name, value in given.items() if name not in own or name in {*TRL.names, *APART}}

    def _merge(self, table: Table, given: dict[str, Any], source: str) -> None:
        if self.table is not None and self.table is not table:
            raise ConfigError(
                f"{source} is of {table.framework}, and the sources before it are of {self.table.framework}"
            )
        if isinstance(self.given.get("model"), Unknown) and given.get("model_name_or_path"):
            del self.given["model"]
        self.table = table
        self.given |= given

    def for_table(self) -> dict[str, Any]:
        if self.table is not VERL:
            return {name: value for name, value in self.given.items() if name not in APART}
        inside = {name: value for name, value in self.given.items() if name.startswith(f"{TEMPLATE}.")}
        values = {name.removeprefix(f"{TEMPLATE}."): value for name, value in inside.items()}
        given = {name: value for name, value in self.given.items() if name not in inside}
        return given | ({TEMPLATE: values} if values else {})

    def apart(self, out: Path) -> list[Item]:
        """Rows, rewards and tools of TRL, which are no settings there."""
        tools = out.with_name(f"{out.stem}_tools.py")
        if self.table is VERL:
            path = self.given.get(CLASSES)
            if not self.given.get(ENABLE) or not path or isinstance(path, Unknown):
                return []
            found, text = class_tools(path, tools)
            self.modules = {tools: text} if text else {}
            return found
        made = out.with_name(f"{out.stem}_rows.jsonl")
        weights, notes = self.given.get("reward_weights"), list[Item]()
        if isinstance(weights, Unknown):
            notes.append(
                Note("reward_weights", "unknown", f"it is `{weights.text}`: set weight in [[reward.scorers]]")
            )
        if self.script is None:
            return [*yaml_rows(self.given, made), *named_rewards(self.given.get("reward_funcs"), weights), *notes]
        trainer = trainer_call(self.script)
        rewards = out.with_name(f"{out.stem}_rewards.py")
        found, text = script_rewards(self.script, trainer, rewards, weights)
        environment, code = script_tools(self.script, trainer, tools)
        self.modules = {file: text for file, text in ((rewards, text), (tools, code)) if text}
        if (
            "args" in trainer
            and not any(self.script.calls(name) for name in CONFIGS)
            and len(self.given) == len(settings(self.script))
        ):
            why = "the script takes GRPOConfig from its command line: give that as well, e.g. train.py run.sh"
            found.append(Note("args", "unknown", why))
        named = "train_dataset" in trainer
        rows = list(script_rows(self.script, trainer, made) if named else yaml_rows(self.given, made))
        if own := used_arguments(self.script):
            why = f"the script's command line: {own}; give others as sources, e.g. name=value or the shell script"
            notes.append(Note("args", "different", why))
        for file, text in self.modules.items():
            if tests := conditional(text):
                why = f"it is copied with its conditions, {tests}: read what it does when it is imported"
                notes.append(Note(str(file), "different", why))
        return [*rows, *found, *environment, *notes]


Found: TypeAlias = tuple[Item, str, bool]


def _puts(items: list[Found]) -> dict[str, tuple[Any, str]]:
    """Defaults of the framework that are also ours need no line."""
    ours = _our_defaults()
    puts: dict[str, tuple[Any, str]] = {}
    for item, origin, default in items:
        if not isinstance(item, Put) or (item.value is UNSET and item.key in puts):
            continue
        if default and item.key != "trainer.algorithm" and item.key in ours and ours[item.key] == item.value:
            continue
        puts[item.key] = item.value, "; ".join(filter(None, (origin, item.why)))
    return puts


def _our_defaults() -> dict[str, Any]:
    tree = load_config(None, (), {}).model_dump(mode="json")
    values = {f"{section}.{key}": value for section, keys in tree.items() for key, value in keys.items()}
    return {key: value for key, value in values.items() if value is not None}


def _notes(items: list[Found]) -> list[Note]:
    order = list(VERDICTS)
    unique = dict.fromkeys(item for item, _, _ in items if isinstance(item, Note))
    return sorted(unique, key=lambda note: order.index(note.verdict))


# A migration as text: TOML with a comment per value and, at its end, what has no counterpart. Pure.

WIDTH = 110


def document(migration: Migration, source: str) -> str:
    head = f"# Translated by `rhymed migrate-config` from {source} ({migration.framework} {migration.version})."
    lines = [head, "# Keys that are missing have rhymed's defaults: docs/config.md."]
    for section in Config.model_fields:
        lines += _section(section, {key: put for key, put in migration.puts.items() if key.startswith(f"{section}.")})
    return "\n".join([*lines, *_without(migration)]) + "\n"


def _section(section: str, puts: dict[str, tuple[Any, str]]) -> Iterator[str]:
    tables: dict[str, list[tuple[str, Any, str]]] = {}
    lists = {}
    for key, (value, comment) in puts.items():
        table, _, name = key.rpartition(".")
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lists[key] = value, comment
        else:
            tables.setdefault(table, []).append((name, value, comment))
    if section in tables or (puts and not lists and not tables):
        yield from _table(section, tables.pop(section, []))
    for name, entries in tables.items():
        yield from _table(name, entries)
    for key, (rows, comment) in lists.items():
        for number, row in enumerate(rows):
            yield from ("", f"[[{key}]]" + (f" # {comment}" if comment and not number else ""))
            yield from (f"{toml_key(name)} = {toml_value(value)}" for name, value in row.items())


def _table(name: str, entries: list[tuple[str, Any, str]]) -> Iterator[str]:
    yield from ("", f"[{name}]")
    for key, value, comment in sorted(entries, key=lambda entry: _place(name, entry[0])):
        line = f"# {key} =" if value is UNSET else f"{key} = {toml_value(value)}"
        if comment and len(line) + len(comment) + 3 > WIDTH:
            yield from textwrap.wrap(comment, WIDTH, initial_indent="# ", subsequent_indent="# ")
            yield line
        else:
            yield f"{line} # {comment}" if comment else line


def _place(table: str, key: str) -> int:
    """In the order of docs/config.md."""
    section = Config.model_fields.get(table)
    fields = list(getattr(section.annotation, "model_fields", ())) if section else []
    return fields.index(key) if key in fields else len(fields)


def _without(migration: Migration) -> Iterator[str]:
    for verdict, title in VERDICTS.items():
        notes = [note for note in migration.notes if note.verdict == verdict]
        if notes:
            yield from ("", f"# {title}")
        for note in notes:
            text = f"{note.name}: {note.reason}"
            yield from textwrap.wrap(
                text,
                WIDTH,
                initial_indent="# * ",
                subsequent_indent="#   ",
                break_on_hyphens=False,
                break_long_words=False,
            )
