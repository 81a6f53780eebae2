"""From sources to a translation: their framework, their settings, its table, and a trial of the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rhymed.config.load import load_config
from rhymed.errors import ConfigError
from rhymed.migrate.documents import is_verl, read_yaml, verl_settings
from rhymed.migrate.entries import UNSET, VERDICTS, Item, Note, Put, Table, Unknown
from rhymed.migrate.shell import hydra, options, words
from rhymed.migrate.trl.rewards import named_rewards, script_rewards
from rhymed.migrate.trl.rows import script_rows, yaml_rows
from rhymed.migrate.trl.script import Script, settings, trainer_call
from rhymed.migrate.trl.table import TRL
from rhymed.migrate.trl.tools import script_tools
from rhymed.migrate.values import typed
from rhymed.migrate.verl.table import VERL

APART = (
    *("dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split"),
    *("reward_funcs", "reward_weights", "config"),
)
"""Settings of `trl grpo` that are translated without the table."""
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

    def problems(self) -> list[str]:
        """Contradictions in the result, which the source may have had."""
        try:
            load_config(None, (), {}, self.values)
        except ConfigError as error:
            return str(error).splitlines()
        return []


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
            dotted = hydra(found)
            if not dotted and not (TRL.names & options(found).keys()):
                raise ConfigError(f"{source} has no settings of TRL's GRPOConfig or of verl's main_ppo")
            self._merge(VERL if dotted else TRL, dotted or options(found), source)
        else:
            raise ConfigError(f"{source}: a *.py, *.yaml or *.sh is read, or settings like data.train_batch_size=64")

    def _override(self, source: str) -> None:
        if "=" not in source:
            what = "a folder; name a file" if Path(source).is_dir() else f"no such file (relative to {Path.cwd()})"
            raise ConfigError(f"{source}: {what}")
        dotted = hydra([source])
        self._merge(VERL if dotted else TRL, dotted or options([f"--{source}"]), source)

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
        return {name: value for name, value in self.given.items() if self.table is VERL or name not in APART}

    def apart(self, out: Path) -> list[Item]:
        """Rows, rewards and tools of TRL, which are no settings there."""
        if self.table is VERL:
            return []
        weights, notes = self.given.get("reward_weights"), list[Item]()
        if isinstance(weights, Unknown):
            notes.append(
                Note("reward_weights", "unknown", f"it is `{weights.text}`: set weight in [[reward.scorers]]")
            )
        if self.script is None:
            return [*yaml_rows(self.given), *named_rewards(self.given.get("reward_funcs"), weights), *notes]
        trainer = trainer_call(self.script)
        rewards, tools = (out.with_name(f"{out.stem}_{what}.py") for what in ("rewards", "tools"))
        found, text = script_rewards(self.script, trainer, rewards, weights)
        environment, code = script_tools(self.script, trainer, tools)
        self.modules = {file: text for file, text in ((rewards, text), (tools, code)) if text}
        if (
            "args" in trainer
            and not self.script.calls("GRPOConfig")
            and len(self.given) == len(settings(self.script))
        ):
            why = "the script takes GRPOConfig from its command line: give that as well, e.g. train.py run.sh"
            found.append(Note("args", "unknown", why))
        rows = script_rows(self.script, trainer) if "train_dataset" in trainer else yaml_rows(self.given)
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
