"""The model card of a checkpoint: what was trained, how well it did, and how to do it again. Pure.

Names of local files appear without their folders, and addresses without passwords: a card is public. The licence is
left to the reader, who knows those of the base model and of the rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rhymed.run.provenance import Start
from rhymed.run.redact import redacted
from rhymed.run.totals import Row, totals
from rhymed.text import counted, toml_key, toml_value

PRIVATE = ("net", "metrics", "store", "trace")
"""Sections without meaning for the model."""

FOLDERS = re.compile(r"(?<![\w:/.<~])(?:file://)?(?:~[\w-]*/|/[\w.@+-]+/)(?:[\w.@+-]+/)*")
"""Of an absolute path inside a text: all but its last part."""

SIZES = (("rollout", "prompts_per_step"), ("rollout", "group_size"), ("rollout", "max_response_length"))


@dataclass(frozen=True)
class Subject:
    """What the card is about."""

    name: str  # user/name
    step: int  # trained steps of the checkpoint
    dtype: str
    adapter: bool
    base: str  # the model that was trained: an id of the hub, or the last part of a path
    config: Mapping[str, Any]  # the run's, as config.json has it
    changed: Mapping[str, Any]  # section -> key -> value, where it is not the default
    rows: Sequence[Row]  # of metrics.jsonl
    evaluations: Sequence[Row]
    start: Start | None
    version: str  # of rhymed


def card(subject: Subject) -> str:
    parts = [_front(subject), f"# {subject.name.rpartition('/')[2]}", _about(subject), *_results(subject)]
    return "\n\n".join([*parts, _use(subject), _training(subject), _again(subject)]) + "\n"


def _front(subject: Subject) -> str:
    base, algorithm = subject.base, str(subject.config["trainer"]["algorithm"])
    library = "peft" if subject.adapter else "transformers"
    lines = ["---", f"library_name: {library}", "pipeline_tag: text-generation"]
    if "/" in base:  # an id of the hub
        relation = "adapter" if subject.adapter else "finetune"
        lines += [f"base_model: {base}", f"base_model_relation: {relation}"]
    hub = [one["path"] for one in _datasets(subject.config["data"]) if one["source"] == "hub"]
    if named := [name for name in hub if not _is_local(name)]:
        lines += ["datasets:", *(f"- {name}" for name in named)]
    lines += ["tags:", "- rhymed", "- reinforcement-learning", f"- {algorithm}"]
    return "\n".join([*lines, "# license: choose one that the base model and the rows allow", "---"])


def _about(subject: Subject) -> str:
    what = "A LoRA adapter for" if subject.adapter else "Trained from"
    algorithm = subject.config["trainer"]["algorithm"]
    rows = ", ".join(_dataset(one) for one in _datasets(subject.config["data"]))
    return (
        f"{what} `{subject.base}`: {counted(subject.step, 'step')} of reinforcement learning ({algorithm}) on"
        f" {rows}, with rhymed {subject.version}. Weights are {subject.dtype}."
    )


def _results(subject: Subject) -> Iterator[str]:
    trained = [row for row in subject.rows if int(row["step"]) < subject.step]
    found = totals(trained, 0.0)
    lines = ["## Results"]
    if not math.isnan(found["reward_gain"]):
        edge = counted(found["edge"], "step")
        lines.append(
            f"Reward of training samples: {found['reward_first']:.3f} in the first {edge},"
            f" {found['reward_last']:.3f} in the last {edge} (gain {found['reward_gain']:+.3f})."
        )
    if table := list(_held_out(subject)):
        lines += ["\n".join(table), "±: one standard error, where the prompts of a dataset are a sample of many."]
    else:
        lines.append("It was not evaluated on held-out prompts.")
    yield "\n\n".join(lines)


def _held_out(subject: Subject) -> Iterator[str]:
    """Of the evaluations up to the checkpoint: the first and the last one."""
    known = [row for row in subject.evaluations if int(row["step"]) <= subject.step]
    if not known:
        return
    first, last = known[0], known[-1]
    yield f"| held out | prompts | after {int(first['step'])} steps | after {int(last['step'])} steps |"
    yield "|---|---|---|---|"
    for key in sorted(last):
        head, _, rest = key.partition("/")
        dataset, _, metric = rest.partition("/")
        if head == "val" and metric.startswith(("acc/", "reward/mean")):
            prompts = last.get(f"val/{dataset}/prompts", 0)
            share = metric.startswith("acc/")
            pair = (_value(row.get(key), row.get(f"val/{dataset}/prompts", 0), share) for row in (first, last))
            yield f"| {dataset}: {metric.removeprefix('acc/')} | {prompts:.0f} | {' | '.join(pair)} |"


def _value(value: float | None, prompts: float, share: bool) -> str:
    if value is None:
        return "-"
    error = math.sqrt(max(0.0, value * (1 - value)) / prompts) if share and prompts else None
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"


def _use(subject: Subject) -> str:
    if subject.adapter:
        load = (
            "from peft import AutoPeftModelForCausalLM\n\n"
            f'model = AutoPeftModelForCausalLM.from_pretrained("{subject.name}")'
        )
    else:
        load = (
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            f'model = AutoModelForCausalLM.from_pretrained("{subject.name}")\n'
            f'tokenizer = AutoTokenizer.from_pretrained("{subject.name}")'
        )
    return f"## Use\n\n```python\n{load}\n```"


def _training(subject: Subject) -> str:
    trainer, rollout, reward = (subject.config[name] for name in ("trainer", "rollout", "reward"))
    scorers = [one["scorer"] for one in reward["scorers"]] or [reward["scorer"]]
    facts = {
        "algorithm": trainer["algorithm"],
        "learning rate": f"{trainer['lr']:g}, {trainer['schedule']}",
        "steps": subject.step,
        **{key.replace("_", " "): subject.config[section][key] for section, key in SIZES},
        "temperature": rollout["temperature"],
        "reward": ", ".join(_local(scorer) for scorer in scorers),
    }
    lines = [f"| {name} | {value} |" for name, value in facts.items()]
    return "\n".join(["## Training", "", "| setting | value |", "|---|---|", *lines])


def _again(subject: Subject) -> str:
    lines = ["## Do it again", "", "Settings that are not rhymed's defaults:", "", "```toml"]
    for section, keys in subject.changed.items():
        if section not in PRIVATE:
            lines += _table(section, public(keys))
    lines += ["```", ""]
    if (start := subject.start) is not None:
        versions = ", ".join(f"{name} {version}" for name, version in start.versions.items())
        hashes = [f"* `{_local(name)}`: SHA-256 `{digest}`" for name, digest in start.files.items() if digest]
        lines += [f"Versions: {versions}.", *(["", "Files:", "", *hashes] if hashes else [])]
    return "\n".join(lines).rstrip()


def _table(name: str, keys: Mapping[str, Any]) -> Iterator[str]:
    """With its inner tables."""
    inner = {key: value for key, value in keys.items() if isinstance(value, dict) and value}
    lists = {key: value for key, value in keys.items() if _is_tables(value)}
    plain = {key: value for key, value in keys.items() if key not in {**inner, **lists} and value is not None}
    if plain:
        yield f"[{name}]"
        yield from (f"{toml_key(key)} = {toml_value(value)}" for key, value in plain.items())
    for key, value in inner.items():
        yield from _table(f"{name}.{toml_key(key)}", value)
    for key, rows in lists.items():
        for row in rows:
            yield f"[[{name}.{toml_key(key)}]]"
            yield from (
                f"{toml_key(inner)} = {toml_value(value)}" for inner, value in row.items() if value is not None
            )


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def public(value: Any) -> Any:
    """A part of the configuration without folders of this machine and without secrets."""
    if isinstance(value, dict):
        return {key: public(redacted(part, key)) for key, part in value.items() if key != "folder"}
    if isinstance(value, list):
        return [public(part) for part in value]
    return _local(value) if isinstance(value, str) else value


def _local(text: str) -> str:
    """An absolute path without its folder, also inside a text; all else as it is."""
    return Path(text).name if _is_local(text) else FOLDERS.sub("", text)


def _is_local(text: str) -> bool:
    """A text like `/no_think` is none."""
    return text.startswith(("/", "~")) and "/" in text[1:] and "\n" not in text


def _datasets(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return data["datasets"] or [data]


def _dataset(one: Mapping[str, Any]) -> str:
    if one["source"] == "reasoning_gym":
        return f"`{one['task']}` (reasoning_gym)"
    return f"`{_local(one['path'])}`" + (f" ({one['subset']})" if one["subset"] else "")
