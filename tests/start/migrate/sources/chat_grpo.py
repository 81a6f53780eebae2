"""A script that trains as soon as it is imported, as most do."""

import os
import re

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import think_format_reward

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
NUMBER = re.compile(r"-?\d+")
GROUP = 4 * 2


def last_number(text):
    found = NUMBER.findall(text.replace(",", ""))
    return found[-1] if found else None


def correct(prompts, completions, answer, **kwargs):
    """1 for the right number."""
    texts = [completion[0]["content"] for completion in completions]
    return [
        float(last_number(text) == right) for text, right in zip(texts, answer, strict=True)
    ]  # one per completion


def brief(limit):
    def brevity(completions, **kwargs):
        return [0.0 if len(completion[0]["content"]) > limit else 0.1 for completion in completions]

    return brevity


dataset = load_dataset("json", data_files="sums.jsonl", split="train")
tokenizer = AutoTokenizer.from_pretrained(MODEL)
config = GRPOConfig(
    output_dir="out/qwen-grpo",
    learning_rate=5e-6,
    per_device_train_batch_size=16,
    gradient_accumulation_steps=4,
    num_generations=GROUP,
    max_completion_length=786,
    max_prompt_length=256,
    num_train_epochs=1,
    lr_scheduler_type="cosine",
    warmup_ratio=0.1,
    max_grad_norm=float(os.environ["CLIP"]),
    bf16=True,
    logging_steps=1,
    save_steps=100,
    report_to="wandb",
    use_vllm=True,
    entropy_coef=0.01,
)
config.vllm_gpu_memory_utilization = 0.4
model = AutoModelForCausalLM.from_pretrained(MODEL, torch_dtype=torch.bfloat16, device_map="auto")
trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=[correct, brief(400), think_format_reward],
    args=config,
    train_dataset=dataset,
    peft_config=LoraConfig(r=16, lora_alpha=64, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
)
trainer.train()
