"""How things look on a terminal, in one place: the same state has the same colour on every screen."""

from __future__ import annotations

from collections.abc import Mapping

ROLES = {"rollout": "▶", "reward": "★", "trainer": "▲"}
COLOURS = {
    "waiting": "grey50",
    "running": "cyan",
    "generated": "blue",
    "scoring": "magenta",
    "scored": "yellow",
    "training": "green",
    "trained": "green",
    "dropped": "red",
}
SPARKS = "▁▂▃▄▅▆▇█"


def step_name(step: int) -> str:
    """An open step, as people call it."""
    from rhymed.messages import EVAL  # here: colours are wanted where messages are not

    return f"eval v{step - EVAL}" if step >= EVAL else f"step {step}"


def grades(val: Mapping[str, float]) -> list[str]:
    """One line a dataset of an evaluation's metrics."""
    by_name: dict[str, list[str]] = {}
    for key, value in val.items():
        head, _, rest = key.partition("/")
        name, _, metric = rest.partition("/")
        if head == "val" and (metric.startswith("acc/") or metric == "reward/mean"):
            by_name.setdefault(name, []).append(f"{metric.removeprefix('acc/').removesuffix('/mean')} {value:.3f}")
    return [f"{name}   {'   '.join(texts)}" for name, texts in by_name.items()]
