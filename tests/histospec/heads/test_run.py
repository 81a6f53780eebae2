"""`rhymed drafter fit`: from a run's folder to a head's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.core.messages import EVAL
from rhymed.histospec.heads.fit import fitting_in, newest
from rhymed.histospec.heads.place import head_file
from rhymed.start.cli import main
from rhymed_store.browse import StoreReader
from tests.packages import needs
from tests.records.history.folders import APPLES, PEARS, Sample, write_store

pytestmark = needs("transformers")


def samples(steps: int) -> list[Sample]:
    """Counting texts."""
    return [
        (step, prompt, index, [20 + step + index + token for token in range(30)], 1.0)
        for step in range(steps)
        for prompt in (APPLES, PEARS)
        for index in range(4)
    ]


def run_of(tmp_path: Path, model: Path, made: list[Sample], **drafts: str) -> Path:
    folder = tmp_path / "earlier"
    write_store(folder, made)
    config = {"run": {"name": "earlier", "folder": str(tmp_path)}, "model": {"path": str(model), "dtype": "float32"}}
    lengths = {"max_prompt_length": 64, "max_response_length": 64}
    made_config = Config.model_validate(config | {"drafts": drafts, "rollout": lengths})
    (folder / "config.json").write_text(made_config.model_dump_json())
    return folder


def test_the_newest_samples_of_training_are_learned_from(tmp_path, tiny_model):
    folder = run_of(
        tmp_path, tiny_model, [*samples(3), (EVAL, APPLES, 0, [5] * 9, 1.0), (-1, APPLES, 0, [5] * 9, 1.0)]
    )
    with StoreReader(folder / "store") as reader:
        texts = newest(reader.browse, 10)
    assert [text.step for text in texts] == [2] * 8 + [1] * 2
    assert [text.prompt for text in texts] == [3] * 10
    assert len(texts[0].tokens) == 33
    cut = fitting_in(texts, width=64, most_bytes=10 * 4 * 64 * 20)
    assert [(len(text.tokens), text.prompt) for text in cut] == [(3 + 20, 3)] * 10
    assert [len(text.tokens) for text in fitting_in(texts, width=64)] == [33] * 10


@pytest.mark.slow
def test_a_head_is_fitted_and_fitted_again(tmp_path, tiny_model, capsys):
    from rhymed.histospec.heads.model import load

    folder = run_of(tmp_path, tiny_model, samples(3))
    assert main(["drafter", "fit", str(folder), "--passes", "1", "--vocabulary", "90", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    head = load(folder / "head.safetensors", 64, 264)
    assert (told["version"], told["samples"], len(told["coupled"])) == (0, 24, 4)
    assert head.about["version"] == "0"
    assert len(head.ids_R) == 90
    assert main(["drafter", "fit", str(folder), "--passes", "1", "--vocabulary", "50"]) == 0
    assert "90 of 264 tokens" in capsys.readouterr().out  # it goes on with the head that is there
    assert main(["drafter", "fit", str(folder), "--passes", "1", "--vocabulary", "50", "--new"]) == 0
    assert "50 of 264 tokens" in capsys.readouterr().out


def test_a_run_with_hardly_any_sample_and_a_folder_that_is_none(tmp_path, tiny_model, capsys):
    folder = run_of(tmp_path, tiny_model, samples(1))
    assert main(["drafter", "fit", str(folder)]) == 2
    assert "has 8 samples; a head is fitted to 16 at least" in capsys.readouterr().err
    assert main(["drafter", "fit", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_the_file_is_where_the_configuration_says(tmp_path):
    config = Config.model_validate({"drafts": {"method": "history+head"}})
    assert head_file(config, tmp_path) == tmp_path / "head.safetensors"
    named = Config.model_validate({"drafts": {"method": "history+head", "head": "~/one"}})
    assert head_file(named, tmp_path) == Path("~/one").expanduser()
