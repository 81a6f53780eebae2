"""Keyed sampling of logits on a device, with vLLM's batch: the same results, no waits, and its memory is reserved."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")
torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode
from vllm import SamplingParams

from rhymed.histospec import plugin
from rhymed.histospec.sampling import fused, places
from tests.histospec.sampling import operations
from tests.histospec.sampling.test_sampler import attached, mixed, rows

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's and torch's own


@pytest.fixture
def accelerator(monkeypatch):
    """What an accelerator does, here on the CPU: operations of torch stand for its kernels."""
    take(monkeypatch)


def take(monkeypatch):
    monkeypatch.setattr(places, "on_cpu", lambda logits: False)
    monkeypatch.setattr(fused, "runs_on", lambda kind: True)
    monkeypatch.setattr(fused, "verify", operations.verify)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_logits_on_an_accelerator_give_the_same(monkeypatch, asynchronous):
    x, drafts = rows(27 * 3), [[7, 7], [5]] * 13 + [[]]
    x = x[: sum(len(draft) + 1 for draft in drafts)]
    expected = attached(mixed(27)).verify(x.clone(), drafts)
    take(monkeypatch)
    runner = attached(mixed(27))
    runner.use_async_scheduling = asynchronous
    made = runner.verify(x.clone(), drafts)
    assert torch.equal(made.sampled_token_ids, expected.sampled_token_ids)
    ours, kernels = made.logprobs_tensors, expected.logprobs_tensors
    assert torch.equal(ours.logprob_token_ids, kernels.logprob_token_ids)
    assert ours.logprobs.numpy() == pytest.approx(kernels.logprobs.numpy(), abs=5e-6)
    words = [made.selected_token_ranks.to(torch.int32).view(torch.float32) for made in (ours, kernels)]
    torch.testing.assert_close(*words, rtol=0, atol=5e-6)
    assert 0.2 < (words[0] < 0).float().mean() < 0.8, "floors of some, and of others none"


def test_without_triton_a_device_is_refused_in_one_sentence(accelerator, monkeypatch):
    monkeypatch.setattr(fused, "runs_on", lambda kind: False)
    with pytest.raises(RuntimeError, match="keyed sampling on cpu needs Triton: install it"):
        attached(mixed(3)).plain(rows(3))


class Waits(TorchDispatchMode):
    """Collects operations whose result has to come to the host before the next one can start."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        flags = [
            i
            for i in (args[1] if name.startswith("index") and isinstance(args[1], (list, tuple)) else ())
            if i is not None
        ]
        if name in ("_local_scalar_dense", "nonzero", "masked_select", "equal") or any(
            isinstance(i, torch.Tensor) and i.dtype == torch.bool for i in flags
        ):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("min_p", "floor"), [(0.0, False), (0.1, False), (0.1, True)])
def test_no_operation_of_a_step_waits_for_the_device(accelerator, min_p, floor):
    about = {"min_p": min_p, "floor": floor}
    asked = [SamplingParams(logprobs=0, extra_args={"rhymed": {"key": r, **about}}) for r in range(6)]
    runner, drafts = attached(asked), [[7, 7]] * 6
    runner.use_async_scheduling = True
    with Waits() as waits:
        runner.plain(rows(6))
        runner.verify(rows(18), drafts)
    assert waits.found == []
    with Waits() as waits:
        _ = rows(6)[rows(6)[:, 0] > 0]
    assert waits.found, "the test would see one"


class Model:
    def __init__(self):
        self.rows = []

    def compute_logits(self, hidden):
        self.rows.append(len(hidden))
        return hidden @ torch.ones(hidden.shape[1], 40, dtype=hidden.dtype)


def profiled(drafts, device="cpu", rows=None):
    """A runner whose class ran vLLM's profiling, and what was sampled in it."""

    class Profiled:
        def __init__(self):
            self.device, self.model, self.drafter = SimpleNamespace(type=device), Model(), SimpleNamespace(rows=rows)
            self.max_num_reqs, self.max_num_tokens, self.num_spec_tokens = 6, 20, drafts
            self.model_config = SimpleNamespace(get_hidden_size=lambda: 8, dtype=torch.bfloat16)

        def profile_run(self):
            pass

        def _sync_device(self):
            pass

    plugin.patch_profiling(Profiled, wanted=lambda runner: True)
    plugin.patch_profiling(Profiled, wanted=lambda runner: True)  # wraps once
    return Profiled()


@pytest.fixture
def stage(monkeypatch):
    """The pipeline stage that the runner is: the last one, unless a test changes it."""
    stage = SimpleNamespace(is_last_rank=True)
    monkeypatch.setattr("vllm.distributed.get_pp_group", lambda: stage)
    return stage


@pytest.mark.parametrize(
    ("drafts", "budget", "expected"), [(0, None, 6), (2, None, 18), (7, None, 20), (7, 12, 12), (2, 19, 18)]
)
def test_the_profiling_run_samples_as_many_rows_as_a_step_may_have(
    accelerator, stage, monkeypatch, drafts, budget, expected
):
    sampled = []
    original = places.verify

    def verify(about, logits, made, want, *others, **named):
        sampled.append((logits.shape[0], logits.dtype, want, made is not None))
        return original(about, logits, made, want, *others, **named)

    monkeypatch.setattr(places, "verify", verify)
    monkeypatch.setattr(plugin, "_new", lambda runner, *shape, **named: torch.zeros(*shape, **named))
    runner = profiled(drafts, "cuda", budget)
    runner.profile_run()
    assert runner.model.rows == [expected]
    assert {(count, want) for count, _, want, _ in sampled if count == expected} == {
        (expected, True),
        (expected, False),
    }
    assert {kind for _, kind, _, _ in sampled} == {torch.bfloat16, torch.float32}
    assert all(made == (drafts > 0) for _, _, _, made in sampled)


def test_an_earlier_stage_of_a_pipeline_has_no_logits(stage):
    stage.is_last_rank = False
    runner = profiled(3, "cuda")
    runner.profile_run()
    assert runner.model.rows == []


def test_on_a_cpu_nothing_is_reserved():
    runner = profiled(3)
    runner.profile_run()
    assert runner.model.rows == []
