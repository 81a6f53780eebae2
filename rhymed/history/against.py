"""`rhymed history audit --against`: have two runs trained the same, step by step, and are their weights the same?

From the lineages and manifests of their newest checkpoints alone: neither store is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rhymed.history.audit import differ, listed, newest
from rhymed.history.words import some
from rhymed_workers import checkpoint


@dataclass
class Against:
    """Two runs held against each other, step by step."""

    both: int = 0  # steps that both have
    equal: int = 0  # of these
    weights: str = ""  # what is known of them
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
        found.wrong.append(f"step {step}, the first that differs: {differ(one[step], other[step])}")
    if a != b:
        found.wrong.append(f"{first.name} has {a} steps in its newest checkpoint, {second.name} has {b}")
    if lonely := sorted(one.keys() ^ other.keys()):
        found.wrong.append(f"step {lonely[0]} is in one of the lineages only ({some(len(lonely), 'such step')})")
    _weights(first, second, a if a == b else 0, found)
    return found


def render(found: Against, first: str, second: str) -> str:
    lines = [f"{first} and {second}: {found.equal} of {some(found.both, 'common step')} trained on the same samples"]
    lines += [found.weights] if found.weights else []
    return "\n".join([*lines, *(listed(found.wrong) if found.wrong else ["the two are equal"])])


def _weights(first: Path, second: Path, step: int, found: Against) -> None:
    """Of the newest checkpoints, by the digests in their manifests."""
    files = [_manifest(folder, step) for folder in (first, second)]
    if not step or not all(files):
        found.weights = "weights: not compared, for there is no checkpoint of one step in both"
    elif files[0] == files[1]:
        found.weights = f"weights: the same, bit for bit, after {some(step, 'step')}"
    else:
        found.wrong.append(f"the weights after {some(step, 'step')} differ")


def _manifest(folder: Path, step: int) -> Mapping[str, str]:
    try:
        file = folder / "checkpoints" / f"step-{step:06d}" / checkpoint.MANIFEST
        files = json.loads(file.read_text())["files"]
    except (OSError, ValueError, KeyError):
        return {}
    return {name: digest for name, digest in files.items() if name.endswith(".safetensors")}
