"""What transformers 5 writes, as older releases read it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rhymed.inputs.models import make_readable

OLDEST = ("transformers==4.57.6", "huggingface_hub==0.36.0", "tokenizers==0.22.1")
"""The oldest release that must load what is exported, and what it needs in older releases, too."""
READ = """
import json, sys
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

folder = sys.argv[1]
tokenizer, config = AutoTokenizer.from_pretrained(folder), AutoConfig.from_pretrained(folder)
AutoModelForCausalLM.from_pretrained(folder)
ids = tokenizer("two <eos>")["input_ids"]
print(json.dumps([transformers.__version__, config.rope_theta, config.rope_scaling, ids]))
"""


@pytest.mark.parametrize(
    ("name", "written", "expected"),
    [
        (
            "tokenizer_config.json",
            {
                "backend": "tokenizers",
                "is_local": True,
                "local_files_only": True,
                "extra_special_tokens": ["<a>"],
                "tokenizer_class": "TokenizersBackend",
            },
            {"tokenizer_class": "PreTrainedTokenizerFast", "additional_special_tokens": ["<a>"]},
        ),
        (
            "tokenizer_config.json",
            {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "é"},
            {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "é"},
        ),
        (
            "config.json",
            {"rope_parameters": {"rope_theta": 1e5, "rope_type": "default"}},
            {"rope_theta": 1e5},
        ),
        (
            "config.json",
            {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0}},
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        ),
        (
            "config.json",
            {
                "model_type": "gemma3_text",
                "rope_parameters": {
                    "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
                    "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
                },
            },
            {
                "rope_theta": 1e6,
                "rope_local_base_freq": 1e4,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
        ),
        (
            "config.json",
            {"model_type": "gpt_neox", "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}},
            {"rotary_emb_base": 1e4, "rotary_pct": 0.25},
        ),
        ("config.json", {"n_positions": 8}, {"n_positions": 8}),
        ("config.json", {"rope_parameters": {"sliding_attention": {"rope_theta": 1.0}}}, {"rope_theta": None}),
    ],
)
def test_files_that_only_the_writers_release_reads(tmp_path: Path, name: str, written, expected) -> None:
    (tmp_path / name).write_text(json.dumps(written))
    make_readable(tmp_path)
    found = json.loads((tmp_path / name).read_text())
    assert {key: found.get(key) for key in expected} == expected
    if name == "config.json":
        assert {key: found[key] for key in written} == written, "this release reads what it wrote"
    else:
        assert found.keys() == expected.keys()
    make_readable(tmp_path)
    assert json.loads((tmp_path / name).read_text()) == found


@pytest.mark.thorough
@pytest.mark.timeout(1500)
def test_the_oldest_release_loads_a_model_as_it_was(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    from tests.tiny import write_tiny_model

    target = tmp_path / "older"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), *OLDEST]
    if subprocess.run(install, timeout=600).returncode:
        pytest.skip("needs a package index")
    folder = tmp_path / "model"
    write_tiny_model(folder)
    config = AutoConfig.from_pretrained(folder)
    config.rope_parameters = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0} | {
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    }
    config.save_pretrained(folder)
    make_readable(folder)
    assert AutoConfig.from_pretrained(folder).rope_parameters == config.rope_parameters
    environment = {**os.environ, "PYTHONPATH": str(target), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "ignore", "-c", READ, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    version, theta, scaling, ids = json.loads(done.stdout.splitlines()[-1])
    assert version == OLDEST[0].partition("==")[2]
    assert theta == 5e5
    assert (scaling["rope_type"], scaling["factor"]) == ("llama3", 8.0)
    assert ids == AutoTokenizer.from_pretrained(folder)("two <eos>")["input_ids"]
