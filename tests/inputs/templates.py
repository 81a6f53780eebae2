"""Chat templates that write what published ones write, as short as they can be."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.inputs.tokenizers import byte_tokenizer


class Published(NamedTuple):
    special: tuple[str, ...]
    end: str  # with which the policy ends a turn
    template: str
    added: tuple[str, ...] = ()
    options: Mapping[str, Any] = MappingProxyType({})

    def tokenizer(self) -> Any:
        return byte_tokenizer(self.special, self.template, eos=self.end, added=self.added)


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN3 = (
    "{%- if tools %}<|im_start|>system\n# Tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}"
    "{%- endif %}{%- endfor %}{%- for m in messages %}{%- if m.role == 'assistant' %}"
    "{%- set content = m.content.split('</think>')[-1].lstrip('\n') %}{{- '<|im_start|>assistant\n' }}"
    "{%- if loop.index0 > ns.last and '</think>' in m.content %}"
    "{{- '<think>\n' + m.content.split('</think>')[0].split('<think>')[-1].strip('\n') + '\n</think>\n\n' }}"
    "{%- endif %}"
    "{{- content + '<|im_end|>\n' }}{%- elif m.role == 'tool' %}"
    "{%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{%- endif %}"
)
LLAMA3 = (
    "{{ '<|begin_of_text|>' }}{% for m in messages %}{% set role = 'ipython' if m.role == 'tool' else m.role %}"
    "{{ '<|start_header_id|>' + role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
    "{# a call of a built-in tool ends with <|eom_id|> #}"
)
STRICT = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
)
MISTRAL = (
    "{{ '<s>' }}" + STRICT + "{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ m.content + '</s>' }}{% endif %}{% endfor %}"
)
LLAMA2 = STRICT + (
    "{% if m.role == 'user' %}{{ '<s>[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + ' </s>' }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ '<bos>' }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    + STRICT
    + "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim"
    " + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
HARMONY = (
    "{{- '<|start|>system<|message|>You are ChatGPT.<|end|>' }}{%- for m in messages %}"
    "{%- if m.role == 'assistant' %}"
    "{{- '<|start|>assistant<|channel|>final<|message|>' + m.content }}"
    "{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}"
    "{%- elif m.role == 'tool' %}{{ raise_exception('no previous assistant message with a tool call <|call|>') }}"
    "{%- else %}{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"
)
GLM = (
    "[gMASK]<sop>{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if messages[loop.index0 - 1].role != 'tool' %}<|observation|>{% endif %}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{% elif m.role == 'assistant' %}{{ '<|assistant|>\n<think></think>\n' + m.content | trim }}"
    "{% else %}{{ '<|' + m.role + '|>\n' + m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>")
PUBLISHED = {
    "chatml": Published(IM, "<|im_end|>", CHATML),
    "qwen3": Published(IM, "<|im_end|>", QWEN3, ("<think>", "</think>")),
    "qwen3-no-thinking": Published(IM, "<|im_end|>", QWEN3, ("<think>", "</think>"), {"enable_thinking": False}),
    "llama3": Published(LLAMA, "<|eot_id|>", LLAMA3),
    "llama2": Published(("<unk>", "<s>", "</s>"), "</s>", LLAMA2),
    "mistral": Published(("<unk>", "<s>", "</s>"), "</s>", MISTRAL),
    "gemma": Published(("<pad>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), "<end_of_turn>", GEMMA),
    "harmony": Published(
        ("<|endoftext|>", "<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>", "<|call|>"),
        "<|return|>",
        HARMONY,
    ),
    "glm": Published(
        ("[gMASK]", "<sop>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        "<|observation|>",
        GLM,
    ),
}
