"""The small reasoner's tokenizer, batches and training, on a model that is smaller still."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.policy import problems, training
from benchmarks.policy.model import QUICK, draw, measure
from rhymed.inputs.models import check_folder

TINY = replace(QUICK, tokens=12_000)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return training.build_tokenizer()


def test_any_text_survives_the_tokenizer(tokenizer: Any) -> None:
    rng = random.Random(5)
    texts = [problems.solution(problems.problem(rng), rng) for _ in range(50)]
    for text in [*texts, "Is this text in the prompt?", "  two  blanks\n\n", "Grüße, 你好", "<tag> 3.14e-5"]:
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_words_and_digits_are_single_tokens(tokenizer: Any) -> None:
    tokens = tokenizer("37, d x 85 =\nNow d, add 85 to 37: ones 7 + 5 = 12").input_ids
    pieces = [tokenizer.decode([token]) for token in tokens]
    assert "|".join(pieces) == "3|7|,| d| x |8|5| =|\n|Now| d|,| add |8|5| to |3|7|:| ones |7| + |5| = |1|2"
    assert len(tokenizer) < 600


def test_batches_are_full_and_learn_the_response_only(tokenizer: Any) -> None:
    recipe = training.Recipe(tokens=100_000)
    found = list(training.batches(recipe, tokenizer))
    total = sum(len(tokens) for batch in found for tokens, _ in batch)
    padded = sum(len(batch) * max(len(tokens) for tokens, _ in batch) for batch in found)
    assert 100_000 <= total < 102_000
    assert padded < 1.1 * total
    inputs_BT, labels_BT = training.tensors(found[0], tokenizer.pad_token_id)
    tokens, prompt = found[0][0]
    assert tokenizer.decode(tokens[:prompt]).endswith(" =\n")
    assert inputs_BT[0, : len(tokens)].tolist() == tokens
    assert set(labels_BT[0, :prompt].tolist()) == {-100}
    assert labels_BT[0, prompt : len(tokens)].tolist() == tokens[prompt:]
    assert tokens[-1] == tokenizer.eos_token_id


def test_the_learning_rate_rises_and_falls() -> None:
    paces = [training.pace(step / 100) for step in range(101)]
    assert paces.index(max(paces)) == 3
    assert paces[-1] == pytest.approx(0.02)


def test_training_is_repeatable_lowers_the_loss_and_writes_a_folder_that_loads(
    tokenizer: Any, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    runs: list[list[float]] = []
    for _ in range(2):
        losses: list[float] = []
        network = training.build_network(TINY, tokenizer)
        training.train(network, tokenizer, TINY, lambda _, loss, __, losses=losses: losses.append(loss))
        runs.append(losses)
    assert runs[0] == runs[1]
    assert runs[0][-1] < runs[0][0] - 1
    training.save(network, tokenizer, tmp_path)
    check_folder(tmp_path)
    loaded, read = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    prompt = problems.problem(random.Random(0)).prompt
    ids = read(prompt, return_tensors="pt").input_ids
    assert ids[0].tolist() == tokenizer(prompt).input_ids
    assert torch.equal(loaded(input_ids=ids).logits, network(input_ids=ids).logits)
    assert loaded.generation_config.eos_token_id == read.eos_token_id == tokenizer.eos_token_id
    result = measure(loaded, read, draw("held_out")[:4], 16)
    assert 0 < result["entropy"] < 7
    assert result["length"]["most"] <= 16


def test_no_held_out_problem_is_trained() -> None:
    train, held_out = draw("train"), draw("held_out")
    assert (len(train), len(held_out)) == (128, 64)
    assert not set(train) & set(held_out)
