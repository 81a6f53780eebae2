"""How keyed sampling gets into a model runner, and when it stays away."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("vllm")
torch = pytest.importorskip("torch")

import vllm
from vllm import SamplingParams
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from rhymed.histospec import plugin
from rhymed.histospec.sampling.sampler import KeyedRejectionSampler, KeyedSampler
from tests.histospec.sampling.fake_runner import Runner, spec_metadata

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's and torch's own


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(plugin, "_state", {"keyed": False, "why": ""})
    monkeypatch.setattr(GPUModelRunner, "initialize_kv_cache", GPUModelRunner.initialize_kv_cache)


class Drafter:
    def __init__(self):
        self.bound = []

    def bind(self, runner):
        self.bound.append(runner)


Ours = type("Ours", (Drafter,), {"__module__": "rhymed.histospec.somewhere"})


@pytest.fixture
def runner():
    return Runner([SamplingParams(seed=1)])


def test_other_versions_stay_as_they_are(monkeypatch, caplog):
    before = GPUModelRunner.initialize_kv_cache
    monkeypatch.setattr(vllm, "__version__", "0.99.1")
    with caplog.at_level(logging.WARNING, "rhymed"):
        assert not plugin.install()
        assert not plugin.install()
    assert len(caplog.records) == 1
    assert "0.99.1" in caplog.text
    assert GPUModelRunner.initialize_kv_cache is before


def test_what_was_attached_is_reported(runner, monkeypatch):
    runner.drafter = Ours()
    assert plugin.attached(runner)["keyed"] is False
    assert plugin.attached(runner)["drafter"] is False
    assert "model runner tests.histospec" in plugin.attached(runner)["why"], "it is not vLLM's first one"
    plugin.attach(runner)
    assert plugin.attached(runner)["keyed"] is True
    assert plugin.attached(runner)["drafter"] is True
    del runner.drafter
    assert plugin.attached(runner)["drafter"] is None


def test_a_head_of_vllm_beside_history_needs_the_second_runner(runner):
    runner.vllm_config.additional_config = {"rhymed": {"engine": 3}}
    with pytest.raises(ValueError, match="needs vLLM's model runner V2"):
        plugin.attach(runner)


def test_processors_with_which_no_batch_has_keys_are_reported(runner):
    class Own:
        def is_argmax_invariant(self):
            return True

    plugin.attach(runner)
    assert plugin.attached(runner)["refused"] == []
    runner.metadata.logitsprocs.argmax_invariant.append(Own())
    assert plugin.attached(runner)["refused"] == ["Own"]
    runner.metadata.logitsprocs.argmax_invariant.pop()
    runner.metadata.logitsprocs.non_argmax_invariant.append(Own())
    assert plugin.attached(runner)["refused"] == [], "vLLM applies it before a token is drawn"
    runner.num_spec_tokens = 3
    assert plugin.attached(runner)["refused"] == ["Own"]


def test_why_keyed_sampling_is_missing_is_reported(runner):
    runner.use_async_scheduling, runner.num_spec_tokens = True, 4
    assert not plugin.attach(runner)
    assert "asynchronous scheduling" in plugin.attached(runner)["why"]


@pytest.mark.parametrize(
    ("asked", "attaches", "starts"), [(True, True, True), (True, False, False), (False, False, True)]
)
def test_a_worker_that_needs_keys_does_not_start_without(runner, monkeypatch, asked, attaches, starts):
    """Whichever model runner it has: vLLM's second one never attaches."""
    from vllm.v1.worker.gpu_worker import Worker

    monkeypatch.setattr(Worker, "initialize_from_config", lambda worker, config: attaches and plugin.attach(runner))
    runner.vllm_config.additional_config = {"rhymed": {"keyed": asked}}
    plugin.require()
    plugin.require()
    worker = object.__new__(Worker)
    worker.model_runner = runner
    if starts:
        return worker.initialize_from_config(None)
    with pytest.raises(RuntimeError, match=r"no keyed sampling \(.*VLLM_USE_V2_MODEL_RUNNER=0"):
        worker.initialize_from_config(None)


def test_installing_twice_wraps_once(monkeypatch):
    calls = []
    monkeypatch.setattr(GPUModelRunner, "initialize_kv_cache", lambda runner, config: calls.append("vllm"))
    monkeypatch.setattr(plugin, "attach", lambda runner: calls.append("attach"))
    assert plugin.install()
    assert plugin.install()
    GPUModelRunner.initialize_kv_cache(object(), None)
    assert calls == ["vllm", "attach"]


def test_attaching_twice_replaces_once_and_binds_once(runner):
    runner.drafter = Ours()
    assert plugin.attach(runner)
    first = runner.sampler, runner.rejection_sampler
    assert plugin.attach(runner)
    assert (runner.sampler, runner.rejection_sampler) == first
    assert isinstance(runner.sampler, KeyedSampler)
    assert isinstance(runner.rejection_sampler, KeyedRejectionSampler)
    assert isinstance(runner.sampler.original, Sampler)
    assert runner.drafter.bound == [runner]
    assert runner.effective_drafter_max_model_len > 2**30


@pytest.mark.parametrize(
    ("config", "default", "drafter", "expected"),
    [
        ({}, False, None, False),
        (None, False, None, False),
        ({}, True, None, True),
        ({}, False, Ours(), True),
        ({}, False, Drafter(), False),
        ({"rhymed": {"keyed": True}}, False, Drafter(), True),
        ({"rhymed": {"keyed": False}}, True, Ours(), False),
    ],
)
def test_who_gets_it(runner, config, default, drafter, expected):
    runner.vllm_config.additional_config = config
    runner.drafter = drafter
    plugin._state["keyed"] = default
    assert plugin.attach(runner) is expected
    assert isinstance(runner.sampler, KeyedSampler) is expected


def test_what_is_missing_is_named(runner, caplog):
    del runner.requests
    runner.sampler = torch.nn.Identity()
    with caplog.at_level(logging.WARNING, "rhymed"):
        assert not plugin.attach(runner)
    assert "requests" in caplog.text
    assert "sampler.compute_logprobs" in caplog.text
    assert isinstance(runner.sampler, torch.nn.Identity)


def test_asynchronous_scheduling_with_drafts_is_refused(runner, caplog):
    runner.use_async_scheduling, runner.num_spec_tokens = True, 4
    with caplog.at_level(logging.WARNING, "rhymed"):
        assert not plugin.attach(runner)
    assert "asynchronous" in caplog.text


def test_a_runner_without_drafts_has_no_rejection_sampler(runner):
    del runner.rejection_sampler
    assert plugin.attach(runner)
    assert not hasattr(runner, "rejection_sampler")


def test_generators_of_seeded_requests_are_kept_out_of_the_batch(runner):
    plugin.attach(runner)
    runner.add("seeded", SamplingParams(seed=3), 4)
    runner.add("other", SamplingParams(seed=4), 4)
    runner.input_batch.swap_states(0, 2)
    runner.input_batch.remove_request("seeded")
    runner.input_batch.condense()
    runner.input_batch.refresh_metadata()
    assert runner.metadata.generators == {}


@pytest.fixture
def repaired(monkeypatch):
    for name in ("expand_batch_to_tokens", "apply_sampling_constraints"):
        monkeypatch.setattr(rejection_sampler, name, getattr(rejection_sampler, name))
    plugin.repair_rejection()


def test_the_repaired_expansion_of_parameters_to_rows(repaired):
    drafts = spec_metadata([[1, 2], [], [3]])
    expand = rejection_sampler.expand_batch_to_tokens
    temperatures = expand(torch.tensor([0.7, 1.2, 0.0]), drafts.cu_num_draft_tokens, 3, replace_from=0, replace_to=1)
    assert temperatures.tolist() == pytest.approx([0.7, 0.7, 1.0])
    assert expand(torch.tensor([5, 6, 7], dtype=torch.int32), drafts.cu_num_draft_tokens, 3).tolist() == [5, 5, 7]


@pytest.mark.parametrize("drafts", [[[], []], [[1], []]])
@pytest.mark.parametrize(("settings", "most"), [({"top_k": 3}, 3), ({"top_p": 0.5}, 16), ({}, 16)])
def test_a_step_without_a_draft_is_constrained(repaired, drafts, settings, most):
    metadata = Runner([SamplingParams(**settings), SamplingParams(**settings)]).metadata
    logits = torch.randn(sum(map(len, drafts)), 16)
    found = rejection_sampler.apply_sampling_constraints(
        logits.clone(), spec_metadata(drafts).cu_num_draft_tokens, metadata
    )
    assert found.shape == logits.shape
    assert all((found > -torch.inf).sum(-1) <= most)
