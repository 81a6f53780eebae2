"""Whether keyed sampling and drafting really are in an engine that has started. Pure: reports in, a sentence out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rhymed.histospec.versions import RELEASES, RUNNER

BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"

PLAIN = 'set rollout.sampler = "vllm" and drafts.method = "none": then batching changes which tokens are sampled'


def environment_problem(environment: Mapping[str, str], *, first_runner: bool, exact: str) -> str:
    """Of an environment that contradicts the settings; else empty. `first_runner`: keyed sampling or drafts are
    wanted, which need vLLM's first model runner. `exact`: `rollout.exact`."""
    chosen, invariant = environment.get(RUNNER, ""), environment.get(BATCH_INVARIANT, "")
    if first_runner and chosen not in ("", "0"):
        return (
            f"{RUNNER}={chosen} is set, but keyed sampling and drafts need vLLM's model runner V1: unset it, or"
            f" {PLAIN}"
        )
    if exact == "tokens" and invariant not in ("", "1"):
        return (
            f"{BATCH_INVARIANT}={invariant} is set, but rollout.exact = 'tokens' needs batch-invariant kernels: unset"
            " it, or set rollout.exact = 'distribution'"
        )
    return ""


def problem(ranks: Sequence[Mapping[str, Any]], *, keyed: bool, drafts: bool) -> str:
    """Empty if all that is wanted is there. `ranks`: of all worker processes, see `histospec.plugin.attached`."""
    why = next((str(rank["why"]) for rank in ranks if rank["why"]), "something else has replaced a part of vLLM")
    cure = f"install vLLM {', '.join(RELEASES)} as published, or {PLAIN}"
    if keyed and not (ranks and all(rank["keyed"] for rank in ranks)):
        return f'rollout.sampler = "keyed", but the engine does not sample with keys: {why}; {cure}'
    if keyed and (refused := sorted({name for rank in ranks for name in rank["refused"]})):
        names = ", ".join(refused)
        return (
            f'rollout.sampler = "keyed", but it is not possible with the logits processors {names}: leave'
            f" rollout.engine_args.logits_processors out, uninstall the package that brings them, or {PLAIN}"
        )
    if drafts and not any(rank["drafter"] for rank in ranks):
        return f'drafts.method = "history", but the engine does not draft: {why}; {cure}'
    return ""
