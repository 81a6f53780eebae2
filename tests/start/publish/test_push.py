"""A checkpoint written to the tests' own hub by the real client, in processes: it reads its settings at import."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.core.config.load import load_config, load_run
from rhymed.core.errors import ConfigError
from rhymed.core.run.checkpoint import save
from rhymed.core.run.folder import save as save_run
from rhymed.start.cli import main
from rhymed.start.publish import base_name, card, without_folders
from rhymed_workers.lora.folder import About, read_about
from rhymed_workers.lora.saved import write_settings
from tests.start.publish.uploads import READ_ONLY, TOKEN, UploadHub, serve

CALL = """
import json, sys
from rhymed.start.cli import main
for environ, words in json.load(sys.stdin):
    import os
    os.environ.pop("HF_TOKEN", None)
    os.environ.update(environ)
    print(main(words), flush=True)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A run's folder with a checkpoint of step 4, as a trainer leaves it."""
    place = tmp_path_factory.mktemp("runs")
    (place / "secret").mkdir()
    rows = place / "secret" / "rows.jsonl"
    rows.write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    settings = {
        "run.name": "sums", "run.folder": str(place), "model.path": str(tiny_model), "data.path": str(rows),
        "rollout.prompts_per_step": 1, "reward.scorer": "exact", "trainer.lr": 3e-5, "metrics.project": "hidden",
    }  # fmt: skip
    layout = save_run(load_config(None, (), {}, settings))

    def write(folder: Path) -> None:
        shutil.copytree(tiny_model, folder, dirs_exist_ok=True)
        (folder / "trainer.json").write_text("{}")

    save(layout.folder / "checkpoints", 4, write, keep=1)
    return layout.folder


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[UploadHub]:
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    with serve(tmp_path) as served:
        yield served


def called(hub: str, tmp_path: Path, *calls: tuple[str, list[str]]) -> list[tuple[int, str]]:
    """Exit status and stderr of each call; all of them in one process. A call is a token and the words."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environ = {
        **kept,
        "HF_ENDPOINT": hub,
        "HF_HOME": str(tmp_path / "hf"),
        "NO_PROXY": "*",
        "HF_HUB_DISABLE_XET": "1",
    }
    words = [({"HF_TOKEN": token} if token else {}, words) for token, words in calls]
    done = subprocess.run(
        [sys.executable, "-c", CALL],
        input=json.dumps(words),
        env=environ,
        text=True,
        capture_output=True,
        timeout=250,
    )
    statuses = [int(line) for line in done.stdout.splitlines() if line.isdigit()]
    errors = [line for line in done.stderr.splitlines() if line.startswith("rhymed: ")]
    assert len(statuses) == len(calls), done.stderr
    return [(status, errors.pop(0) if status else done.stdout) for status in statuses]


@pytest.mark.timeout(300)
def test_a_checkpoint_is_written_with_its_card(run: Path, hub: UploadHub, tmp_path: Path) -> None:
    push = ["checkpoint", "push", str(run)]
    answers = called(
        hub.address,
        tmp_path,
        ("", [*push, "me/sums"]),
        ("hf_unknown", [*push, "me/sums"]),
        (READ_ONLY, [*push, "me/sums"]),
        (TOKEN, [*push, "sums"]),
        (TOKEN, [*push, "me/sums", "--private"]),
        (TOKEN, [*push, "me/sums"]),
        (TOKEN, [*push, "me/sums", "--update", "--revision", "half", "--dtype", "float16"]),
        (TOKEN, [*push, "me/sums", "--update", "--private"]),
    )
    assert [status for status, _ in answers] == [2, 2, 2, 2, 0, 2, 0, 2], answers[-1]
    texts = [text for _, text in answers]
    assert "there is no token for the hub: `hf auth login`, or set HF_TOKEN" in texts[0]
    assert "does not know this token" in texts[1]
    assert "refuses to write me/sums" in texts[2]
    assert "USER/NAME" in texts[3]
    assert "exists already: name another one, or add --update" in texts[5]
    assert f"{hub.address}/me/sums/tree/half: 4 steps trained, float16" in texts[6]
    assert "me/sums is public, and --private does not change that" in texts[7]
    assert hub.deleted == ["model-00001-of-00002.safetensors"], "of an earlier push with more files"
    assert hub.created["me/sums"]["visibility"] == "private"
    main_branch, half = hub.branches["me/sums"]["main"], hub.branches["me/sums"]["half"]
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(main_branch)
    assert "trainer.json" not in main_branch
    assert json.loads(half["config.json"])["dtype"] == "float16"
    assert b'"dtype":"F16"' in half["model.safetensors"]
    assert b'"dtype":"BF16"' in main_branch["model.safetensors"]
    assert b"4 steps of reinforcement learning (grpo)" in main_branch["README.md"]
    assert hub.messages == ["4 steps of grpo with rhymed"] * 2
    assert not list(run.glob(".push-*"))


@pytest.mark.thorough
@pytest.mark.timeout(120)
def test_a_hub_that_does_not_answer(run: Path, tmp_path: Path) -> None:
    ((status, text),) = called("http://127.0.0.1:9", tmp_path, (TOKEN, ["checkpoint", "push", str(run), "me/sums"]))
    assert status == 2
    assert "http://127.0.0.1:9 cannot be reached" in text


def test_the_card_says_how_the_model_was_made_and_names_no_folder_of_this_machine(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoint", "push", str(run), "me/sums", "--dry-run"]) == 0
    text = capsys.readouterr().out
    base = Path(load_run(run).model.path).name
    assert text.startswith("---\nlibrary_name: transformers\n")
    assert f"# sums\n\nTrained from {base}: 4 steps of reinforcement learning (grpo), with rhymed " in text
    assert "Weights are bfloat16." in text
    assert "# license: choose" in text
    for hidden in (str(run.parent), "secret", "rows.jsonl", "hidden"):
        assert hidden not in text


def test_mistakes_are_found_before_the_card_is_shown(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("sums", "me/two words", "me/"):
        assert main(["checkpoint", "push", str(run), name, "--dry-run"]) == 2
        assert f"{name}: name a repository as USER/NAME" in capsys.readouterr().err
    config = json.loads((run / "config.json").read_text())
    config["trainer"]["engine"] = config["rollout"]["engine"] = "trace"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="trained by the trace engine: there is no model"):
        card(load_run(tmp_path), "me/sums", 4, "float32", adapter=False)


def test_the_card_of_an_adapter_names_its_model_and_the_rows_that_are_public() -> None:
    rows = [{"path": "me/sums"}, {"task": "chain_sum"}, {"path": "/home/me/secret.jsonl"}]
    config = Config.model_validate({"model": {"path": "Qwen/Qwen2.5-0.5B"}, "data": {"datasets": rows}})
    text = card(config, "me/sums", 4, "float32", adapter=True)
    assert "library_name: peft\n" in text
    assert "base_model: Qwen/Qwen2.5-0.5B\nbase_model_relation: adapter\ndatasets:\n- me/sums\ntags:" in text
    assert "A LoRA adapter for Qwen/Qwen2.5-0.5B: 4 steps of reinforcement learning (grpo)" in text
    assert " on me/sums, chain_sum (reasoning_gym), with rhymed " in text
    assert "AutoPeftModelForCausalLM" in text
    assert "secret" not in text


def test_the_card_of_supervised_training_speaks_of_no_rewards() -> None:
    config = Config.model_validate({"trainer": {"algorithm": "sft"}, "data": {"path": "me/answers"}})
    text = card(config, "me/sums", 4, "float32", adapter=False)
    assert "4 steps of supervised fine-tuning on me/answers" in text
    assert "reinforcement" not in text


def test_an_adapter_names_its_model_without_the_folder(tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import load_file, save_file

    about = About(str(tmp_path / "secret" / "base"), "digest", 1, 2.0, {"layer": "layer.weight"})
    tensors = {"layer.lora_A.weight": np.arange(6, dtype=np.float32)}
    save_file(tensors, tmp_path / "adapter_model.safetensors", about.metadata())
    write_settings(tmp_path, about, [])
    without_folders(tmp_path)
    assert read_about(tmp_path / "adapter_model.safetensors") == replace(about, base="base")
    assert load_file(tmp_path / "adapter_model.safetensors")["layer.lora_A.weight"].tolist() == [0, 1, 2, 3, 4, 5]
    for file in tmp_path.iterdir():
        assert b"secret" not in file.read_bytes()
    assert json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"] == "base"
    assert base_name("Qwen/Qwen2.5-0.5B") == "Qwen/Qwen2.5-0.5B"
