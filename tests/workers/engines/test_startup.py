"""Of an engine that did not start: the deepest cause, as vLLM's processes write it."""

import json
from pathlib import Path

import pytest

from rhymed_workers.engines.startup import cure, explain, missing_library, root_cause, try_model

SUBPROCESS = """Traceback (most recent call last):
  File "/env/vllm/model_executor/models/registry.py", line 1568, in _run_in_subprocess
    returned.check_returncode()
subprocess.CalledProcessError: Command '['python', '-m', 'vllm.model_executor.models.registry']' returned non-zero

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/env/vllm/model_executor/models/registry.py", line 1360, in _try_inspect_model_cls
    return model.inspect_model_cls()
RuntimeError: Error raised in subprocess:
<frozen runpy>:128: RuntimeWarning: found in sys.modules
Traceback (most recent call last):
  File "/env/transformers/utils/import_utils.py", line 2317, in _get_module
    return importlib.import_module("." + module_name, self.__name__)
  File "/env/torchvision/_meta_registrations.py", line 163, in <module>
    @torch.library.register_fake("torchvision::nms")
RuntimeError: operator torchvision::nms does not exist

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
ModuleNotFoundError: Could not import module 'ProcessorMixin'. Are this object's requirements defined correctly?
"""
MISSING = """Traceback (most recent call last):
  File "/env/transformers/models/qwen2_vl/image_processing_qwen2_vl.py", line 26, in <module>
    from torchvision.transforms.v2 import functional as tvF
ModuleNotFoundError: No module named 'torchvision'
"""
UNRELATED = """Traceback (most recent call last):
  File "/env/vllm/usage.py", line 3, in report
    send()
OSError: no network
"""
CORE = """Traceback (most recent call last):
  File "/env/vllm/v1/engine/core.py", line 1100, in run_engine_core
    raise AttributeError(name)
AttributeError: '_OpNamespace' '_C' object has no attribute 'init_cpu_memory_env'
"""
KEY = """Traceback (most recent call last):
  File "/env/vllm/config.py", line 7, in rope
    return settings["rope_type"]
KeyError: 'rope_type'
"""


def write(log: Path, *entries: tuple[str, str]) -> Path:
    lines = [{"text": text, **({"error": {"traceback": trace}} if trace else {})} for text, trace in entries]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return log


@pytest.mark.parametrize(
    ("entries", "error", "words", "cure"),
    [
        (
            [("usage", UNRELATED), ("Error in inspecting model architecture 'LlamaForCausalLM'", SUBPROCESS)],
            "Model architectures ['LlamaForCausalLM'] failed to be inspected.",
            "RuntimeError: operator torchvision::nms does not exist",
            "pip uninstall torchvision",
        ),
        (
            [
                (
                    "Failed to import: ImportError('libnuma.so.1: cannot open shared object file: No such",
                    "",
                ),
                ("EngineCore failed to start.", CORE),
            ],
            "Engine core initialization failed. See root cause above. Failed core proc(s): {}",
            "libnuma.so.1: cannot open shared object file",
            "apt install libnuma1",
        ),
        (
            [("EngineCore failed to start.", CORE)],
            "Engine core initialization failed. See root cause above.",
            "AttributeError: '_OpNamespace' '_C' object has no attribute 'init_cpu_memory_env'",
            "",
        ),
        (
            [("torchcodec: libavutil.so.56: cannot open shared object file", ""), ("EngineCore failed.", KEY)],
            "Engine core initialization failed. See root cause above.",
            "KeyError: 'rope_type'",
            "",
        ),
        (
            [("INFO: torchvision is not used", ""), ("EngineCore failed.", KEY)],
            "Engine core initialization failed. See root cause above.",
            "KeyError: 'rope_type'",
            "",
        ),
        (
            [("Error in inspecting model architecture 'Qwen3_5ForCausalLM'", MISSING)],
            "Model architectures ['Qwen3_5ForCausalLM'] failed to be inspected.",
            "ModuleNotFoundError: No module named 'torchvision'",
            "install the build of that package for this torch",
        ),
        ([("usage", UNRELATED)], "max_model_len (9) is greater than 8", "max_model_len (9) is greater than 8", ""),
    ],
)
def test_the_deepest_cause_and_its_cure(tmp_path: Path, entries, error: str, words: str, cure: str) -> None:
    reported = explain(RuntimeError(error), write(tmp_path / "rollout-0.log", *entries))
    assert reported.startswith(words)
    assert cure in reported
    assert cure or reported == words, "no cure of something else"
    assert "\n" not in reported


def test_an_engine_that_does_not_fit_names_what_to_change(tmp_path: Path) -> None:
    log = tmp_path / "rollout-0.log"
    log.write_text("ValueError: Free memory on device cuda:0 (3/80 GiB) on startup is less than desired\n")
    begun = log.stat().st_size
    with log.open("a") as stream:
        stream.write("ValueError: No available memory for the cache blocks. Try increasing\n")
    failed = RuntimeError("Engine core initialization failed. See root cause above.")
    assert "rollout.quantization" in explain(failed, log, begun)
    assert explain(failed, log, log.stat().st_size) == str(failed), "an earlier start wrote that"
    assert "rollout.exact = 'distribution'" in cure("VLLM batch_invariant mode is not supported for FOO")
    assert "NVIDIA's driver" in cure("RuntimeError: Found no NVIDIA driver on your system.")
    assert explain(failed, None) == str(failed)


def test_a_validation_error_is_its_sentence_and_not_its_last_line() -> None:
    from pydantic import BaseModel, ValidationError, field_validator

    class Settings(BaseModel):
        length: int

        @field_validator("length")
        @classmethod
        def short(cls, value: int) -> int:
            raise ValueError("the length is greater than 8")

    with pytest.raises(ValidationError) as caught:
        Settings(length=9)
    assert explain(caught.value, None) == "Value error, the length is greater than 8"


def test_nothing_is_found_in_words_without_an_error() -> None:
    assert root_cause("Loading weights: 100%\nINFO 01-01 00:00:00 [core.py:1] ready\n") == ""


def test_a_command_that_failed_is_the_cause_if_nothing_says_why() -> None:
    """What vLLM says where /sys is missing; the command's own words went elsewhere."""
    words = "subprocess.CalledProcessError: Command 'lscpu --json --online' returned non-zero exit status 1."
    frame = '  File "/env/vllm/v1/engine/core.py", line 144, in __init__\n    call()\n'
    assert root_cause(f"Traceback (most recent call last):\n{frame}{words}\n") == words
    assert "mount -t sysfs" in cure(words)


def test_a_class_that_cannot_be_loaded_is_said_before_an_engine_starts(tmp_path: Path, monkeypatch) -> None:
    """A package `vllm` on the path, whose registry fails as the real one does."""
    package = tmp_path / "path/vllm/model_executor/models"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "registry.py").write_text(
        "class Lazy:\n"
        "    def inspect_model_cls(self):\n"
        "        raise RuntimeError('operator torchvision::nms does not exist')\n\n\n"
        "class ModelRegistry:\n"
        "    models = {'LlamaForCausalLM': Lazy()}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(package.parent.parent.parent))
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    reported = try_model(tmp_path)
    assert reported.startswith("RuntimeError: operator torchvision::nms does not exist: pip uninstall torchvision")
    (tmp_path / "cache/modelinfos").mkdir(parents=True)
    (tmp_path / "cache/modelinfos/vllm-model_executor-models-llama-LlamaForCausalLM.json").write_text("{}")
    assert try_model(tmp_path) == "", "vLLM has looked at it before"


def test_the_library_that_pip_does_not_bring_is_tried(monkeypatch) -> None:
    from rhymed_workers.engines import startup

    monkeypatch.setattr(startup, "installed", lambda: "0.32.0+cpu")
    monkeypatch.setattr(startup, "NUMA", "libnuma.so.99")
    assert "libnuma.so.99: cannot open shared object file" in missing_library()
    assert "apt install libnuma1" in missing_library()
