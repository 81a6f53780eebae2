"""Drafts in vLLM's model runner V2 on two tensor-parallel ranks, with asynchronous scheduling: one rank drafts, and
both cut the same places off a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.histospec.test_v2 import equal, run
from tests.packages import needs
from tests.tiny import write_eagle_head

pytestmark = [needs("vllm"), needs("triton"), pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(900)]


def test_a_head_of_vllm_drafts_on_two_ranks_and_changes_no_token(sharp_model: Path) -> None:
    """One rank decides between the head's drafts and those of history. `reset`: all running requests are preempted at
    once while a step is computed, four times."""
    write_eagle_head(sharp_model, sharp_model.with_name(f"{sharp_model.name}-eagle3"))
    reported = run(sharp_model, "ranks", "1", asynchronous=True, VLLM_CPU_OMP_THREADS_BIND="0|0")
    (drafting, drafted, accepted), (other, *nothing) = reported["ranks"]
    assert (drafting, other, nothing) == (True, False, [0, 0])
    assert 0 < accepted < drafted
    (verified, right), unused = reported["heads"]
    assert 0 < right < verified
    assert unused == [0, 0]
    for how in ("head", "drafted", "reset"):
        equal(reported["plain"], reported[how], 1e-5)
