"""Distillation through the learner, on tiny real models: gradients, what is learned, and a resumed run."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rhymed.core.config import Config
from rhymed.core.messages import SampleId, SampleInfo
from rhymed.inputs.models import resolve_model
from rhymed.inputs.render import load_renderer, load_tokenizer
from rhymed.inputs.rows import prompt_id
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.learner import TorchLearner
from rhymed_workers.trainer.policy.packing import Sequences
from rhymed_workers.trainer.policy.policy import Policy
from rhymed_workers.trainer.teacher.distillation import TeacherPrompts
from tests.workers.trainer.teacher.servers import TeacherServer, serving

ROWS = [{"prompt": "What is 2+2?", "answer": "4"}, {"prompt": "And 3+4, please?", "answer": "7"}]
LENGTH, GROUP = 6, 4


@pytest.fixture(scope="module")
def teacher_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model with the same tokenizer, which is surer of its tokens."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("teacher") / "model"
    shutil.copytree(tiny_model, folder)
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        model.model.norm.weight.mul_(3)
    model.save_pretrained(folder)
    return folder


def tokenizer_of(config: Config) -> Any:
    return load_tokenizer(config.model, resolve_model(config))


def settings(model: Path, algorithm: str, teacher: dict[str, Any], **trainer: Any) -> Config:
    return Config.model_validate(
        {
            "model": {"path": str(model)},
            "rollout": {
                "max_prompt_length": 64,
                "max_response_length": LENGTH,
                "prompts_per_step": 2,
                "group_size": 4,
            },
            "trainer": {
                "algorithm": algorithm,
                "lr": 3e-3,
                "micro_tokens": 60,
                "threads": 1,
                "teacher": teacher,
                **trainer,
            },
        }
    )


def plain(policy: Policy) -> Any:
    """The same weights in transformers' own model, without our packing and attention."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**policy.model.config.to_dict())
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.load_state_dict(policy.model.state_dict())
    return model.float().eval()


@torch.no_grad()
def sampled(policy: Policy, config: Config, step: int) -> list[StoredSample]:
    """A step's samples, drawn from the policy itself."""
    render, draw, model = load_renderer(config), torch.Generator().manual_seed(step), plain(policy)
    found = []
    for row in ROWS:
        prompt = render("row", row)
        tokens, logprobs = torch.tensor([prompt] * GROUP), torch.zeros(GROUP, 0)
        for _ in range(LENGTH):
            scores = (model(tokens).logits[:, -1] / policy.temperature).log_softmax(-1)
            chosen = torch.multinomial(scores.exp(), 1, generator=draw)
            tokens, logprobs = torch.cat([tokens, chosen], 1), torch.cat([logprobs, scores.gather(1, chosen)], 1)
        for index in range(GROUP):
            info = SampleInfo(
                id=SampleId(step, prompt_id(row), index),
                prompt_length=len(prompt),
                length=LENGTH,
                finish_reason="length",
                versions=[(step, LENGTH)],
                reward=0.0,
            )
            response = tokens[index, len(prompt) :].numpy().astype(np.uint32)
            found.append(StoredSample(info, response, logprobs[index].numpy(), np.array(prompt, np.uint32), row=row))
    return found


def distributions(model: Any, sequences: list[Sequences], temperature: float = 1.0) -> Tensor:
    """(N, V) log-probs of every token at each place of the responses, by a `plain` model."""
    found = []
    for prompt, response, *_ in sequences:
        tokens = torch.tensor([[*map(int, prompt), *map(int, response)]])
        found.append((model(tokens).logits[0, len(prompt) - 1 : -1] / temperature).log_softmax(-1))
    return torch.cat(found)


@torch.no_grad()
def reverse_kl(learner: TorchLearner, teacher: Policy, samples: list[StoredSample], prompts: TeacherPrompts) -> float:
    own = distributions(plain(learner.policy), TeacherPrompts().sequences(samples))
    other = distributions(plain(teacher), prompts.sequences(samples))
    return float((own.exp() * (own - other)).sum(-1).mean())


FORMS: list[dict[str, Any]] = [
    {"divergence": "reverse"},
    {"divergence": "reverse", "over": "vocabulary"},
    {"divergence": "forward"},
    {"divergence": "mixed", "beta": 0.3},
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(map(str, form.values())))
def test_a_student_learns_its_teacher(tiny_model: Path, teacher_model: Path, form: dict[str, Any]) -> None:
    """The divergence falls in a few steps on the policy's own samples, to the bit the same twice."""
    config = settings(tiny_model, "opd", {"model": str(teacher_model), **form})
    one, other = TorchLearner.restore(config, None), TorchLearner.restore(config, None)
    teacher = Policy.load(teacher_model)
    held_out = sampled(one.policy, config, 999)
    before = reverse_kl(one, teacher, held_out, TeacherPrompts())
    for step in range(12):
        samples = sampled(one.policy, config, step)
        found, again = one.train(samples), other.train(samples)
        assert untimed(found) == untimed(again)
    exact = form != FORMS[0]  # a policy gradient is noisier
    assert before > 0.5
    assert reverse_kl(one, teacher, held_out, TeacherPrompts()) < (0.5 if exact else 0.93) * before
    assert found["distill/divergence"] < before
    assert all(torch.equal(tensor, other.tensors()[name]) for name, tensor in one.tensors().items())


def untimed(metrics: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if not key.startswith(("timing", "perf"))}


@pytest.mark.parametrize("shown", [{}, {"system": "Think of the teacher."}], ids=["same prompts", "own prompts"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_gradient_of_an_exact_divergence_is_autograds(
    tiny_model: Path, teacher_model: Path, shown: dict[str, Any], temperature: float
) -> None:
    config = settings(tiny_model, "opd", {"model": str(teacher_model), "over": "vocabulary", **shown}, minibatches=1)
    tree = config.model_dump()
    tree["rollout"]["temperature"] = temperature
    learner = TorchLearner.restore(Config.model_validate(tree), None)
    samples = sampled(learner.policy, config, 0)
    teacher = Policy.load(teacher_model, temperature)
    gradients: dict[str, Tensor] = {}

    def keep(loss: float, sums: Any) -> None:
        for name, parameter in learner.policy.model.named_parameters():
            gradients[name] = parameter.grad.clone() if parameter.grad is not None else torch.zeros_like(parameter)

    learner._optimize = keep  # type: ignore[method-assign]
    model = plain(learner.policy)
    found = learner.train(samples)
    assert learner._distillation is not None
    with torch.no_grad():
        logq = distributions(plain(teacher), learner._distillation._prompts.sequences(samples), temperature)
    logp = distributions(model, TeacherPrompts().sequences(samples), temperature)
    value = (logp.exp() * (logp - logq)).sum(-1).mean()
    value.backward()
    assert found["actor/loss"] == pytest.approx(value.item(), rel=1e-4)
    assert found["distill/divergence"] == pytest.approx(value.item(), rel=1e-4)
    for name, parameter in model.named_parameters():
        assert torch.allclose(gradients[name], parameter.grad, atol=2e-6), name


@pytest.mark.parametrize("form", [*FORMS, {"divergence": "mixed", "system": "Think."}], ids=str)
def test_micro_batches_do_not_change_the_step(tiny_model: Path, teacher_model: Path, form: dict[str, Any]) -> None:
    found = []
    for micro_tokens in (1, 60, 4096):
        config = settings(tiny_model, "opd", {"model": str(teacher_model), **form}, micro_tokens=micro_tokens)
        learner = TorchLearner.restore(config, None)
        found.append(learner.train(sampled(learner.policy, config, 0)))
    for name in ("actor/loss", "actor/grad_norm", "actor/entropy", "distill/divergence"):
        assert [one[name] for one in found] == pytest.approx([found[0][name]] * 3, rel=1e-4), name


def test_a_server_teaches_what_the_same_model_does_here(tiny_model: Path, teacher_model: Path) -> None:
    teacher = plain(Policy.load(teacher_model))

    def score(tokens: list[int]) -> Any:
        with torch.no_grad():
            return teacher(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1).tolist()

    tokenizer = tokenizer_of(settings(tiny_model, "opd", {"model": str(teacher_model)}))
    server = TeacherServer(lambda text: tokenizer(text, add_special_tokens=False).input_ids, score=score)
    with serving(server) as url:
        for remote, local in (
            ({"url": url}, {"model": str(teacher_model)}),
            (
                {"url": url, "divergence": "forward", "topk": 264},
                {"model": str(teacher_model), "divergence": "forward"},
            ),
        ):
            there = TorchLearner.restore(settings(tiny_model, "opd", remote), None)
            here = TorchLearner.restore(settings(tiny_model, "opd", local), None)
            samples = sampled(here.policy, settings(tiny_model, "opd", local), 0)
            far, near = there.train(samples), here.train(samples)
            assert far["distill/divergence"] == pytest.approx(near["distill/divergence"], rel=1e-4)
            assert far["actor/grad_norm"] == pytest.approx(near["actor/grad_norm"], rel=1e-4)
            assert far["actor/entropy"] == pytest.approx(near["actor/entropy"], rel=1e-5)


def test_a_teacher_adds_to_the_rewards_of_another_algorithm(tiny_model: Path, teacher_model: Path) -> None:
    """With coef -> 0 it is plain GRPO; samples without a reward's signal learn from the teacher alone."""
    plain = TorchLearner.restore(settings(tiny_model, "grpo", {}), None)
    samples = [
        dataclasses.replace(sample, info=_rewarded(sample.info, float(sample.info.id.index)))
        for sample in sampled(plain.policy, settings(tiny_model, "grpo", {}), 0)
    ]
    hardly = TorchLearner.restore(settings(tiny_model, "grpo", {"model": str(teacher_model), "coef": 1e-6}), None)
    expected, found = plain.train(samples), hardly.train(samples)
    assert found["actor/grad_norm"] == pytest.approx(expected["actor/grad_norm"], rel=1e-4)
    assert found["distill/divergence"] > 0.3
    flat = [dataclasses.replace(sample, info=_rewarded(sample.info, 1.0)) for sample in samples]
    taught = TorchLearner.restore(settings(tiny_model, "grpo", {"model": str(teacher_model)}), None)
    assert taught.train(flat)["actor/grad_norm"] > 0


def test_a_kl_term_counts_next_to_an_exact_divergence(tiny_model: Path, teacher_model: Path) -> None:
    found = {}
    for kl_coef in (0.0, 5.0):
        config = settings(
            tiny_model, "opd", {"model": str(teacher_model), "divergence": "forward"}, kl_coef=kl_coef, minibatches=4
        )
        learner = TorchLearner.restore(config, None)
        found[kl_coef] = learner.train(sampled(learner.policy, config, 0))
    assert "actor/kl" not in found[0.0]
    assert found[5.0]["actor/kl"] > 0
    assert found[5.0]["actor/loss"] > found[0.0]["actor/loss"]


def _rewarded(info: SampleInfo, reward: float) -> SampleInfo:
    import msgspec

    return msgspec.structs.replace(info, reward=reward)


def test_the_policy_learns_from_itself_what_it_was_shown(tiny_model: Path) -> None:
    teacher = {"demonstration": "answer", "weights": "initial", "over": "vocabulary"}
    config = settings(tiny_model, "opsd", teacher, lr=1e-3)
    learner = TorchLearner.restore(config, None)
    assert learner.reads_rows
    assert learner._distillation is not None
    prompts, initial = learner._distillation._prompts, Policy.load(tiny_model)
    held_out = sampled(learner.policy, config, 999)
    text = tokenizer_of(config).decode(prompts.sequences(held_out)[0].prompt.tolist())
    assert text.startswith("What is 2+2?")
    assert "right response:\n\n4\n\nNow" in text
    before = reverse_kl(learner, initial, held_out, prompts)
    for step in range(10):
        learner.train(sampled(learner.policy, config, step))
    after = reverse_kl(learner, initial, held_out, prompts)
    assert after < 0.7 * before, (before, after)


def test_the_policy_of_each_step_is_its_own_teacher(tiny_model: Path) -> None:
    """Without anything that only the teacher sees the two would agree: what differs is what it was shown."""
    config = settings(tiny_model, "opsd", {"system": "Be brief."})
    learner = TorchLearner.restore(config, None)
    for step in range(2):
        samples = sampled(learner.policy, config, step)
        assert learner._distillation is not None
        with torch.no_grad():
            own, shown = (
                distributions(plain(learner.policy), prompts.sequences(samples))
                for prompts in (TeacherPrompts(), learner._distillation._prompts)
            )
        picked = torch.cat([torch.from_numpy(sample.tokens.astype(np.int64)) for sample in samples])[:, None]
        expected = float((own.gather(1, picked) - shown.gather(1, picked)).mean())
        assert learner.train(samples)["distill/divergence"] == pytest.approx(expected, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "teacher"),
    [("opsd", {"demonstration": "answer"}), ("opsd", {"system": "Be brief.", "over": "vocabulary"}), ("sft", {})],
)
def test_two_and_two_steps_are_four_steps_to_the_bit(
    tiny_model: Path, tmp_path: Path, algorithm: str, teacher: dict[str, Any]
) -> None:
    config = settings(tiny_model, algorithm, teacher) if algorithm != "sft" else warm_start(tiny_model)
    straight = TorchLearner.restore(config, None)
    steps = [sampled(straight.policy, settings(tiny_model, "grpo", {}), step) for step in range(4)]
    expected = [straight.train(samples) for samples in steps]
    first = TorchLearner.restore(config, None)
    for samples in steps[:2]:
        first.train(samples)
    first.save(tmp_path)
    second = TorchLearner.restore(config, tmp_path)
    found = [second.train(samples) for samples in steps[2:]]
    assert list(map(untimed, found)) == list(map(untimed, expected[2:]))
    assert all(torch.equal(tensor, second.tensors()[name]) for name, tensor in straight.tensors().items())


def warm_start(model: Path) -> Config:
    rollout = {"max_prompt_length": 64, "max_response_length": 16, "prompts_per_step": 4}
    trainer = {"algorithm": "sft", "lr": 5e-3, "threads": 1, "micro_tokens": 60}
    return Config.model_validate({"model": {"path": str(model)}, "rollout": rollout, "trainer": trainer})


def test_sft_learns_four_rows_by_heart(tiny_model: Path) -> None:
    config = warm_start(tiny_model)
    learner = TorchLearner.restore(config, None)
    answers = [b"four", b"seven!", b"a much longer 1", b"9"]
    samples = []
    for number, answer in enumerate(answers):
        tokens = [*_ids(config, answer), 1]
        info = SampleInfo(
            id=SampleId(0, f"{number:016x}", 0),
            prompt_length=3,
            length=len(tokens),
            finish_reason="stop",
            versions=[(0, len(tokens))],
            reward=0.0,
        )
        nothing = np.full(len(tokens), np.nan, np.float32)
        samples.append(StoredSample(info, np.array(tokens, np.uint32), nothing, np.array([40 + number, 3, 4])))
    first = learner.train(samples)
    with torch.no_grad():
        expected = -distributions(plain(Policy.load(tiny_model)), TeacherPrompts().sequences(samples))
    picked = torch.cat([torch.from_numpy(sample.tokens.astype(np.int64)) for sample in samples])
    assert first["actor/loss"] == pytest.approx(float(expected.gather(1, picked[:, None]).mean()), rel=1e-5)
    assert first["actor/samples"] == 4
    assert "mismatch_kl/mean" not in first
    assert "reward/flat_groups" not in first
    for step in range(1, 40):
        last = learner.train([dataclasses.replace(s, info=_at(s.info, step)) for s in samples])
    assert last["actor/loss"] < 0.05
    model = plain(learner.policy)
    for sample in samples:
        tokens = sample.prompt_tokens.tolist()  # type: ignore[union-attr]
        while tokens[-1] != 1 and len(tokens) < 30:
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        assert tokens[3:] == sample.tokens.tolist()


def _at(info: SampleInfo, step: int) -> SampleInfo:
    import msgspec

    return msgspec.structs.replace(info, id=SampleId(step, info.id.prompt, 0), versions=[(step, info.length)])


def _ids(config: Config, text: bytes) -> list[int]:
    found: list[int] = tokenizer_of(config)(text.decode(), add_special_tokens=False).input_ids
    return found


def test_rows_are_fetched_only_for_a_teacher_with_other_prompts(tiny_model: Path, teacher_model: Path) -> None:
    config = settings(tiny_model, "opd", {"model": str(teacher_model)})
    learner = TorchLearner.restore(config, None)
    assert not learner.reads_rows  # the teacher reads the policy's prompts, whose tokens come with the samples
