"""For a process with the stand-ins: `python -m tests.cuda.probe imports`, or `… CONFIG FOLDER`. Prints JSON."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
OURS = ("rhymed", "rhymed_broker", "rhymed_store", "rhymed_workers")
ELSEWHERE = ("benchmarks.peers", "rhymed.shipped")  # other trainers, which have environments of their own
VLLM = """
    _custom_ops platforms.cuda engine.arg_utils device_allocator.cumem vllm_flash_attn
    v1.engine.async_llm v1.engine.core v1.executor.multiproc_executor v1.executor.uniproc_executor
    v1.worker.gpu_worker v1.worker.gpu_model_runner v1.worker.gpu.model_runner v1.cudagraph_dispatcher
    v1.attention.backends.flash_attn v1.attention.backends.triton_attn v1.sample.sampler v1.sample.rejection_sampler
    v1.sample.ops.topk_topp_sampler v1.spec_decode.ngram_proposer distributed.weight_transfer.factory
    model_executor.models.llama model_executor.models.qwen2 model_executor.model_loader.reload lora.request
"""
LIBRARIES = ("vllm._C_stable_libtorch", "vllm._moe_C_stable_libtorch", "vllm.cumem_allocator")
SHAPES: dict[str, Any] = {  # of the models that configs/gpu/ names
    "Qwen/Qwen2.5-1.5B-Instruct": ("Qwen2Config", 151936, 1536, 8960, 28, 12, 2),
    "Qwen/Qwen2.5-7B-Instruct": ("Qwen2Config", 152064, 3584, 18944, 28, 28, 4),
    "meta-llama/Llama-3.3-70B-Instruct": ("LlamaConfig", 128256, 8192, 28672, 80, 64, 8),
}


def imports() -> dict[str, str]:
    """Module -> why it cannot be imported."""
    found = {}
    names = [*modules(), *(f"vllm.{name}" for name in VLLM.split()), *LIBRARIES]
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def modules() -> Iterator[str]:
    for package in OURS:
        for place in importlib.import_module(package).__path__:
            for one in pkgutil.walk_packages([place], f"{package}."):
                if not one.name.endswith("__main__") and not one.name.startswith(ELSEWHERE):
                    yield one.name


def model(folder: Path, shape: Any) -> Path:
    """A folder with the configuration of a model, without weights."""
    import transformers

    kind, vocabulary, hidden, inner, layers, heads, kv = shape
    made = getattr(transformers, kind)(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        max_position_embeddings=32768,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        architectures=[kind.replace("Config", "ForCausalLM")],
    )
    made.save_pretrained(folder)
    return folder


def engine(file: Path, folder: Path) -> dict[str, Any]:
    """What vLLM makes of a configuration, for a GPU."""
    from rhymed.core.config.load import load_config
    from rhymed_workers.engines.launch import arguments, environment

    config = load_config(file)
    keyed = config.rollout.sampler == "keyed" or config.drafts.method != "none"
    environment(first_runner=keyed, exact=config.rollout.exact)
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform

    where = model(folder / file.stem, SHAPES[config.model.path])
    made = AsyncEngineArgs(**arguments(config, where)).create_engine_config()
    return {
        "cuda": current_platform.is_cuda(),
        "runner2": bool(made.use_v2_model_runner),
        "graphs": made.compilation_config.cudagraph_mode.name,
        "ranks": made.parallel_config.world_size,
        "drafted": made.speculative_config.num_speculative_tokens if made.speculative_config else 0,
    }


if __name__ == "__main__":
    if sys.argv[1] == "imports":
        print(json.dumps(imports()), flush=True)
    else:
        print(json.dumps(engine(ROOT / sys.argv[1], Path(sys.argv[2]))), flush=True)
    os._exit(0)  # what vLLM has started is not waited for
