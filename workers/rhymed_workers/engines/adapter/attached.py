"""Whether keyed sampling and drafting really are in an engine that has started. Pure: reports in, a sentence out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rhymed.histospec.versions import RELEASES, RUNNER

PLAIN = 'set rollout.sampler = "vllm" and drafts.method = "none": then batching changes which tokens are sampled'


def runner_problem(environment: Mapping[str, str]) -> str:
    """Of an environment that chooses vLLM's second model runner for an engine that needs the first; else empty."""
    chosen = environment.get(RUNNER, "")
    if chosen in ("", "0"):
        return ""
    return (
        f"{RUNNER}={chosen} is set, but keyed sampling and drafts need vLLM's model runner V1: unset it, or {PLAIN}"
    )


def problem(ranks: Sequence[Mapping[str, Any]], *, keyed: bool, drafts: bool) -> str:
    """Empty if all that is wanted is there. `ranks`: of all worker processes, see `histospec.plugin.attached`."""
    why = next((str(rank["why"]) for rank in ranks if rank["why"]), "something else has replaced a part of vLLM")
    cure = f"install vLLM {', '.join(RELEASES)} as published, or {PLAIN}"
    if keyed and not (ranks and all(rank["keyed"] for rank in ranks)):
        return f'rollout.sampler = "keyed", but the engine does not sample with keys: {why}; {cure}'
    if drafts and not any(rank["drafter"] for rank in ranks):
        return f'drafts.method = "history", but the engine does not draft: {why}; {cure}'
    return ""
