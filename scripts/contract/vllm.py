"""The parts of vLLM that rhymed uses, as one release has them: signatures, fields, attributes, bases, and how vLLM
calls rhymed's parts. Names that a release lacks are missing, and null in `signatures`.

`SIGNATURES`, `MEMBERS` and `FIELDS` must be extended when the code uses more of vLLM.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from scripts.contract.sources import Sources, signature, statements

SIGNATURES = {
    "vllm.v1.engine.async_llm:AsyncLLM": "from_engine_args generate abort pause_generation start_weight_update"
    " update_weights finish_weight_update reset_prefix_cache resume_generation collective_rpc shutdown sleep wake_up",
    "vllm.v1.engine.output_processor:OutputProcessor": "process_outputs",
    "vllm.v1.engine.detokenizer:IncrementalDetokenizer": "num_output_tokens output_token_ids",
    "vllm.distributed.weight_transfer.base:WeightTransferEngine": "init_transfer_engine start_weight_update"
    " receive_weights finish_weight_update shutdown trainer_send_weights",
    "vllm.distributed.weight_transfer.factory:WeightTransferEngineFactory": "register_engine",
    "vllm.model_executor.model_loader.reload": "initialize_layerwise_reload finalize_layerwise_reload",
    "vllm.model_executor.model_loader.reload.layerwise": "make_online_process_loader",
    "vllm.model_executor.model_loader.weight_utils": "default_weight_loader",
    "vllm.model_executor.layers.rotary_embedding.base:RotaryEmbedding": "forward_cpu",
    "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method:UnquantizedFusedMoEMethod": "_setup_kernel",
    "vllm.v1.worker.gpu_worker:Worker": "initialize_from_config",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner": "initialize_kv_cache execute_model propose_draft_token_ids"
    " profile_run _sync_device",
    "vllm.v1.worker.gpu.model_runner:GPUModelRunner": "load_model execute_model sample add_requests finish_requests"
    " take_draft_token_ids shutdown",
    "vllm.v1.worker.gpu.model_runner": "init_speculator",
    "vllm.v1.worker.gpu.sample.sampler:Sampler": "__call__ add_request apply_sampling_params _sample_random",
    "vllm.v1.worker.gpu.sample.states:SamplingStates": "apply_min_p",
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler:RejectionSampler": "__call__ _verify",
    "vllm.v1.worker.gpu.spec_decode.speculator:BaseSpeculator": "init_cudagraph_manager capture propose",
    "vllm.v1.sample.sampler:Sampler": "forward apply_logits_processors compute_logprobs gather_logprobs",
    "vllm.v1.sample.sampler": "batched_count_greater_than",
    "vllm.v1.sample.rejection_sampler:RejectionSampler": "forward apply_logits_processors",
    "vllm.v1.sample.rejection_sampler": "expand_batch_to_tokens apply_sampling_constraints",
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
    "vllm.logprobs:FlatLogprobs": "logprobs ranks",
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
    "vllm.v1.worker.gpu.model_runner:GPUModelRunner": "parallel_config sampler rejection_sampler speculator"
    " req_states vllm_config model_config device",
    "vllm.v1.worker.gpu.sample.sampler:Sampler": "req_states sampling_states",
    "vllm.v1.worker.gpu.sample.states:SamplingStates": "seeds seeds_set temperature top_p top_k min_p",
    "vllm.v1.worker.gpu.buffer_utils:UvaBackedTensor": "np gpu",
    "vllm.v1.worker.gpu.states:RequestState": "draft_tokens req_id_to_index index_to_req_id",
    "vllm.v1.worker.gpu.input_batch:InputBatch": "req_ids idx_mapping idx_mapping_np num_draft_tokens_per_req"
    " has_prefill",
    "vllm.v1.worker.gpu.sample.output:SamplerOutput": "sampled_token_ids logprobs_tensors",
    "vllm.v1.worker.gpu.spec_decode.speculator:DraftModelSpeculator": "num_speculative_steps",
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler:RejectionSampler": "sampler num_speculative_steps"
    " synthetic_conditional_rates",
    "vllm.v1.core.sched.output:NewRequestData": "req_id prompt_token_ids prefill_token_ids sampling_params",
    "vllm.v1.core.sched.output:GrammarOutput": "structured_output_request_ids grammar_bitmask",
    "vllm.v1.outputs:DraftTokenIds": "req_ids draft_token_ids",
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
    " scheduled_spec_decode_tokens scheduled_new_reqs finished_req_ids",
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
FACTS = {  # of functions on whose inside rhymed relies: names, of which all simple statements are taken
    "vllm.v1.worker.gpu.input_batch:_combine_sampled_and_draft_tokens_kernel": "draft_tokens",
    "vllm.v1.core.sched.scheduler:Scheduler.update_from_output": "num_accepted num_rejected",
}
VARIABLES = (
    "VLLM_NO_USAGE_STATS",
    "VLLM_LOGGING_CONFIG_PATH",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_USE_V2_MODEL_RUNNER",
)
RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"


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


def facts(sources: Sources, where: str, names: str) -> list[str]:
    """Statements of a function, given as `module:name` or `module:Class.name`, with one of these names in them."""
    module, _, path = where.partition(":")
    first, _, method = path.partition(".")
    found = sources.find(module, first)
    nodes = [found[1]] if found else []
    if method:
        nodes = [node for one in sources.classes(f"{module}:{first}") for node in one.body]
    simple = ast.Assign | ast.AugAssign | ast.Expr
    inner = (
        ast.unparse(part)
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.name == (method or first)
        for part in ast.walk(node)
        if isinstance(part, simple)
    )
    return sorted({text for text in inner if re.search(rf"\b({names.replace(' ', '|')})\b", text)})


def contract(path: Path) -> dict[str, Any]:
    sources = Sources(path, "vllm")
    errors = sources.module("vllm.exceptions")
    classes = [node for node in statements(errors) if isinstance(node, ast.ClassDef)] if errors else []
    environment = sources.text("vllm/envs.py") or ""
    return {
        "version": sources.version(),
        "torch": next(iter(re.findall(r"^Requires-Dist: torch==([\w.+]+)", sources.about(), re.MULTILINE)), ""),
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
        "facts": {where: facts(sources, where, names) for where, names in FACTS.items()},
        "variables": " ".join(name for name in VARIABLES if f'"{name}"' in environment),
    }
