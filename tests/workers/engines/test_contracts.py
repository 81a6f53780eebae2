"""What rhymed takes hold of in vLLM exists in every release that it works with, and is called as ours expects."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.histospec.versions import RELEASES, RUNNER
from rhymed_workers.engines.extension import Extension
from scripts.contract import vllm as extracted
from tests.workers.engines.standin import contract, signature_of

pytest.importorskip("vllm")
ENGINE = "vllm.engine.arg_utils:AsyncEngineArgs"
PARAMETERS = "vllm.sampling_params:SamplingParams"
V2 = "vllm.v1.worker.gpu."
"""Begins the modules of vLLM's model runner V2."""
every_release = pytest.mark.parametrize("release", RELEASES)


def test_every_row_has_its_contract() -> None:
    for name in RELEASES:
        assert contract(name)["version"].startswith(f"{name}.")


@every_release
def test_nothing_is_missing(release: str) -> None:
    taken = contract(release)
    for where, names in extracted.SIGNATURES.items():
        if where.startswith(V2) and not RELEASES[release].v2:
            continue
        lacking = [name for name in names.split() if taken["signatures"][where][name] is None]
        assert set(lacking) <= {"trainer_send_weights"}, where
    for where, names in extracted.MEMBERS.items():
        if where.startswith(V2) and not RELEASES[release].v2:
            continue
        lacking = [name for name in names.split() if name not in taken["members"][where].split()]
        assert set(lacking) <= ({"weight_versions"} if not RELEASES[release].labels else set()), where
    assert taken["variables"].split() == list(extracted.VARIABLES)
    assert RUNNER in taken["variables"]
    assert all(taken["engine_errors"].values())


@every_release
def test_a_row_is_what_the_wheel_has(release: str) -> None:
    taken, row = contract(release), RELEASES[release]
    assert {*row.refusals, *row.failures} <= set(taken["errors"])
    labelled = "weight_version" in taken["signatures"]["vllm.v1.engine.async_llm:AsyncLLM"]["finish_weight_update"]
    spans = "weight_versions" in taken["members"]["vllm.outputs:CompletionOutput"]
    assert row.labels == labelled == spans

    def above(name: str) -> set[str]:
        bases = taken["errors"].get(name, "").split()
        return {name, *bases, *(found for base in bases for found in above(base))}

    covered = {*row.refusals, *row.failures, "ValueError"}
    base = {"VLLMError"}  # raised as one of its kinds
    assert [name for name in taken["errors"] if name not in base and not above(name) & covered] == []


@every_release
@pytest.mark.parametrize("drafts", ["history", "none"])
@pytest.mark.parametrize("cpu", [True, False])
def test_arguments_and_parameters_are_fields(
    release: str, drafts: str, cpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.platforms import current_platform

    from rhymed_workers.engines.base import Task, sampling_for
    from rhymed_workers.engines.client import sampling_params
    from rhymed_workers.engines.launch import arguments
    from tests.workers.engines.test_client import ID

    config = Config.model_validate({"drafts": {"method": drafts}, "model": {"dtype": "float32"}})
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: cpu)
    known = set(contract(release)["fields"][ENGINE].split())
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert set(arguments(config, tmp_path)) <= known
    task = Task(ID, [1, 2], sampling_for(config.rollout, config.eval, 0, ID))
    params = sampling_params(task, "keyed", drafts, [1])
    assert set(_keywords(sampling_params)) <= set(contract(release)["fields"][PARAMETERS].split())
    assert params.seed is None


def _keywords(function: Any) -> list[str]:
    """Of its call of SamplingParams."""
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(function))) if isinstance(node, ast.Call)]
    (made,) = [call for call in calls if ast.unparse(call.func) == "SamplingParams"]
    return [keyword.arg or "" for keyword in made.keywords]


def _binds(signature: inspect.Signature, call: str) -> None:
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call)
    signature.bind(object(), *node.args, **{str(one.arg): one.value for one in node.keywords})


@every_release
def test_vllm_can_call_ours(release: str) -> None:
    from rhymed.histospec.proposer import HistoSpec
    from rhymed.histospec.sampling.sampler import KeyedRejectionSampler, KeyedSampler

    ours = {
        "self.sampler": KeyedSampler.forward,
        "self.rejection_sampler": KeyedRejectionSampler.forward,
        "self.drafter.propose": HistoSpec.propose,
    }
    for callee, method in ours.items():
        (call,) = contract(release)["calls"][callee]
        _binds(inspect.signature(method), call)


@every_release
def test_what_is_replaced_in_model_runner_v2_takes_its_arguments(release: str) -> None:
    if not RELEASES[release].v2:
        return
    from rhymed.histospec.runner_v2 import Speculator
    from rhymed.histospec.sampling.runner_v2 import KeyedRejectionSampler, KeyedSampler, WholeStates

    replaced = {
        f"{V2}sample.states:SamplingStates": (WholeStates, ("apply_min_p",)),
        f"{V2}sample.sampler:Sampler": (KeyedSampler, ("add_request", "_sample_random")),
        f"{V2}spec_decode.rejection_sampler:RejectionSampler": (KeyedRejectionSampler, ("_verify",)),
        f"{V2}spec_decode.speculator:BaseSpeculator": (
            Speculator,
            ("init_cudagraph_manager", "capture", "propose"),
        ),
    }
    for where, (kind, names) in replaced.items():
        for name in names:
            theirs, ours = signature_of(release, where, name), inspect.signature(getattr(kind, name))
            assert theirs is not None, (where, name)
            given = list(theirs.parameters)
            ours.bind(*given)
            if name.removeprefix("_") in ("sample_random", "verify", "propose", "apply_min_p"):  # several of one type
                read = [one.name for one in ours.parameters.values() if one.kind == one.POSITIONAL_OR_KEYWORD]
                assert given[: len(read)] == read, (where, name)


OURS = {  # where -> calls, as they stand in our code
    "vllm.v1.sample.sampler:Sampler": [
        "apply_logits_processors(z, metadata, False)",
        "forward(logits, metadata)",
        "forward(logits=logits, sampling_metadata=metadata)",
    ],
    "vllm.v1.sample.rejection_sampler:RejectionSampler": [
        "apply_logits_processors(z, metadata, counts)",
        "forward(metadata, draft_probs, logits, sampling_metadata)",
    ],
    "vllm.v1.worker.gpu_worker:Worker": ["initialize_from_config(config)"],
    "vllm.v1.engine.async_llm:AsyncLLM": ["sleep(level=level, mode='keep')", "wake_up(tags=tags)"],
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner": ["execute_model(step)", "initialize_kv_cache(config)"],
}
PLAIN = {
    "vllm.v1.sample.ops.topk_topp_sampler": ["apply_top_k_top_p(part, top_k, top_p)"],
    "vllm.v1.sample.sampler": ["batched_count_greater_than(logprobs, values)"],
    "vllm.v1.sample.sampler:Sampler": ["compute_logprobs(values)", "gather_logprobs(values, number, drawn)"],
    "vllm.model_executor.model_loader.reload": [
        "initialize_layerwise_reload(model)",
        "finalize_layerwise_reload(model, model_config)",
    ],
}


@every_release
def test_drafts_are_fed_unclamped_and_the_scheduler_rejects_what_was_not_made(release: str) -> None:
    """So no draft may be below 0, and a step may verify fewer drafts than the scheduler has placed."""
    kernel, scheduler = (contract(release)["facts"][where] for where in extracted.FACTS)
    if RELEASES[release].v2:
        load = "draft_tokens = tl.load(draft_tokens_ptr + req_state_idx * draft_tokens_stride + block, mask=mask)"
        store = "tl.store(input_ids_ptr + query_end - num_draft_tokens + block, draft_tokens, mask=mask)"
        assert kernel == [load, store]
    assert "num_rejected = num_draft_tokens - num_accepted" in scheduler
    assert "num_accepted = max(len(generated_token_ids) - num_sampled, 0)" in scheduler
    assert "request.num_output_placeholders -= num_rejected" in scheduler


@every_release
def test_ours_can_call_vllm(release: str) -> None:
    for places, bound in ((OURS, True), (PLAIN, False)):
        for where, calls in places.items():
            for call in calls:
                node = ast.parse(call, mode="eval").body
                assert isinstance(node, ast.Call)
                signature = signature_of(release, where, ast.unparse(node.func))
                assert signature is not None, (where, call)
                named = {str(one.arg): one.value for one in node.keywords}
                signature.bind(*([object()] if bound else []), *node.args, **named)


@every_release
def test_a_model_runner_has_what_keyed_sampling_needs(release: str) -> None:
    from rhymed.histospec.plugin import NEEDED

    places = {
        "": "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
        "input_batch": "vllm.v1.worker.gpu_input_batch:InputBatch",
        "sampler": "vllm.v1.sample.sampler:Sampler",
        "rejection_sampler": "vllm.v1.sample.rejection_sampler:RejectionSampler",
    }
    taken = contract(release)
    for part, names in NEEDED.items():
        methods = taken["signatures"].get(places[part], {})
        known = {*taken["members"][places[part]].split(), *(name for name, text in methods.items() if text)}
        assert set(names) <= known, part


@every_release
def test_the_names_of_our_extension_are_free(release: str) -> None:
    """vLLM refuses an extension of its worker that has a name of the worker's."""
    ours = {name for name in dir(Extension) if not name.startswith("__")}
    assert ours & set(contract(release)["worker"].split()) == set()
    assert "weight_transfer_engine" in contract(release)["worker"].split()  # that `weights_from` asks


def test_the_installed_release_is_its_contract() -> None:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    made = extracted.contract(Path(spec.origin).parents[1])
    known = contract(".".join(made["version"].split(".")[:2]))
    assert {**made, "torch": made["torch"].split("+")[0], "version": ""} == {**known, "version": ""}


def test_a_wheel_is_read_as_a_folder_is(tmp_path: Path) -> None:
    """Imports that go up, bases in other modules, properties; what is missing is null."""
    files = {
        "vllm-0.99.0.dist-info/METADATA": "Name: vllm\nVersion: 0.99.0\nRequires-Dist: torch==9.0\n",
        "vllm/__init__.py": "",
        "vllm/v1/sample/base.py": "class Parent:\n    def compute_logprobs(self, x: int) -> int: ...\n",
        "vllm/v1/sample/sampler.py": (
            "from .base import Parent as Above\n"
            "class Sampler(Above):\n"
            "    def __init__(self): self.logprobs_mode = 1\n"
            "    async def forward(self, logits, *, mode: str = 'x'): ...\n"
        ),
    }
    with zipfile.ZipFile(tmp_path / "vllm.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
            (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "folder" / name).write_text(text)
    made = extracted.contract(tmp_path / "vllm.whl")
    assert made == extracted.contract(tmp_path / "folder") == json.loads(json.dumps(made))
    assert (made["version"], made["torch"]) == ("0.99.0", "9.0")
    where = "vllm.v1.sample.sampler:Sampler"
    assert made["members"][where] == "logprobs_mode"
    assert made["signatures"][where] == {
        "forward": "async (self, logits, *, mode=...)",
        "apply_logits_processors": None,
        "compute_logprobs": "(self, x)",
        "gather_logprobs": None,
    }
