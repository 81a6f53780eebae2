"""`rhymed history audit --against`: have two runs trained the same, step by step, and are their weights the same?

From the lineages and weights of their newest checkpoints alone: neither store is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rhymed.history.compare.audit import differ, listed, newest
from rhymed.history.compare.weights import apart
from rhymed.run import checkpoint
from rhymed.text import counted, step_name

EQUAL = "the two are equal"
NEARLY = "the two are equal but for the last bits of their weights"
NEAR = 1e-5
"""Weights that are no further apart are taken for equal: an engine's log-probs differ in their last bits."""


@dataclass
class Against:
    """Two runs held against each other, step by step."""

    both: int = 0  # steps that both have
    equal: int = 0  # of these
    weights: str = ""  # what is known of them
    near: bool = False  # not the same bits, but nearly
    wrong: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "same": not self.wrong}


def against(first: Path, second: Path) -> Against:
    """Folders of two runs: the same samples in the same steps, and the same weights after them?"""
    (a, ours, _), (b, theirs, _) = newest(first), newest(second)
    one, other = ({line.step: line for line in lines} for lines in (ours, theirs))
    common = sorted(one.keys() & other.keys())
    different = [step for step in common if differ(one[step], other[step])]
    found = Against(len(common), len(common) - len(different))
    if different:
        step = different[0]
        found.wrong.append(f"{step_name(step)}, the first that differs: {differ(one[step], other[step])}")
    if a != b:
        found.wrong.append(f"{first.name} has {a} steps in its newest checkpoint, {second.name} has {b}")
    if lonely := sorted(one.keys() ^ other.keys()):
        found.wrong.append(
            f"{step_name(lonely[0])} is in one of the lineages only ({counted(len(lonely), 'such step')})"
        )
    exact = any(line.weights for line in ours)  # the trace engine's: nothing else enters than the samples
    _weights(first, second, a if a == b else 0, found, exact=exact)
    return found


def render(found: Against, first: str, second: str) -> str:
    lines = [
        f"{first} and {second}: {found.equal} of {counted(found.both, 'common step')} trained on the same samples"
    ]
    lines += [found.weights] if found.weights else []
    return "\n".join([*lines, *(listed(found.wrong) if found.wrong else [NEARLY if found.near else EQUAL])])


def _weights(first: Path, second: Path, step: int, found: Against, *, exact: bool) -> None:
    """Of the newest checkpoints, by the digests in their manifests."""
    files = [_manifest(folder, step) for folder in (first, second)]
    if not step or not all(files):
        found.weights = "weights: not compared, for there is no checkpoint of one step in both"
    elif files[0] == files[1]:
        found.weights = f"weights: the same, bit for bit, after {counted(step, 'step')}"
    else:
        _measure(first, second, step, found, 0.0 if exact else NEAR)


def _measure(first: Path, second: Path, step: int, found: Against, near: float) -> None:
    """They are not the same bits: is that the last bits of log-probs, or something else?"""
    folders = [_place(folder, step) for folder in (first, second)]
    by = apart(*(folder.glob("*.safetensors") for folder in folders))
    told = (
        f"the weights after {counted(step, 'step')} differ: by {by.most:.1g} at most, in {by.differing:,} of"
        f" {by.numbers:,} numbers"
    )
    if by.most <= near:
        found.weights, found.near = told, True
    else:
        found.wrong.append(told)


def _place(run: Path, step: int) -> Path:
    return checkpoint.folder_of(run / "checkpoints", step)


def _manifest(folder: Path, step: int) -> Mapping[str, str]:
    try:
        files = json.loads((_place(folder, step) / checkpoint.MANIFEST).read_text())["files"]
    except (OSError, ValueError, KeyError):
        return {}
    return {name: digest for name, digest in files.items() if name.endswith(".safetensors")}
