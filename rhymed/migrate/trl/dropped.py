"""Settings of TRL that nothing here needs: names or patterns, and the reason. The first that fits counts."""

from __future__ import annotations

UNIMPORTANT = "it changes neither samples nor losses"
DROPPED = {
    **dict.fromkeys(
        ("vespo_*", "sapo_*", "ref_model_*", "entropy_*"), "it belongs to a setting that is named above, or off"
    ),
    "disable_dropout": "the trainer computes without dropout",
    **dict.fromkeys(
        ("logging_*", "log_*", "debug", "skip_memory_metrics", "num_completions_to_print", "disable_tqdm"),
        "every step is logged",
    ),
    **dict.fromkeys(("vllm_server_*", "vllm_group_port"), "engines are found by themselves"),
    **dict.fromkeys(("vllm_*",), "rollout.engine_args takes vLLM's arguments by their names"),
    **dict.fromkeys(
        (
            "dataloader_*",
            "remove_unused_columns",
            "pad_to_multiple_of",
            "data_seed",
            "label_names",
            "length_column_name",
            "train_sampling_strategy",
        ),
        "rows are read by rhymed",
    ),
    **dict.fromkeys(
        ("save_*", "load_best_model_at_end", "metric_for_best_model", "greater_is_better", "restore_*"),
        "trainer.keep_checkpoints are kept",
    ),
    **dict.fromkeys(("hub_*",), "rhymed checkpoint push names them"),
    **dict.fromkeys(("lora_*", "bnb_*", "use_bnb_*"), "adapters are of causal language models"),
    **dict.fromkeys(
        ("ddp_*", "ds3_*", "local_rank", "fsdp_*", "accelerator_config"), "ranks are started by rhymed run"
    ),
    **dict.fromkeys(
        (
            "per_device_eval_batch_size",
            "eval_*",
            "do_train",
            "do_eval",
            "do_predict",
            "prediction_loss_only",
            "batch_eval_metrics",
        ),
        UNIMPORTANT,
    ),
    **dict.fromkeys(
        (
            *(
                "attn_implementation",
                "dtype",
                "torch_dtype",
                "torch_compile*",
                "use_liger_kernel",
                "liger_kernel_config",
            ),
            *("tf32", "bf16_*", "*_full_eval", "optim_args", "gradient_checkpointing_kwargs", "full_determinism"),
            *("use_transformers_*", "transformers_*", "cache_implementation", "average_tokens_across_devices"),
            *("processing_class", "reward_processing_classes", "torch_empty_cache_steps", "include_*"),
            *(
                "ignore_data_skip",
                "dataset_streaming",
                "trackio_*",
                "auto_find_batch_size",
                "use_cache",
                "enable_jit_*",
            ),
        ),
        UNIMPORTANT,
    ),
}
