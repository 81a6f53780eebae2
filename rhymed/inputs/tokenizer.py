"""Reads a model's tokenizer, and its identity, which keeps token ids of another one out of a run's history."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rhymed.core.errors import ConfigError

RENDER_S = 5.0  # of processor time, for one chat; milliseconds are usual
LOOK_S = 0.5

TRIED = "5.19."
"""The releases of transformers whose `AutoTokenizer` chooses as `CLASSES` does. With others, it chooses itself."""

BACKEND = "tokenization_utils_tokenizers", "TokenizersBackend"
PLAIN = dict.fromkeys(("TokenizersBackend", "PreTrainedTokenizerFast"), BACKEND)
GPT2 = {"GPT2Tokenizer": ("models.gpt2.tokenization_gpt2", "GPT2Tokenizer")}
QWEN2 = {"Qwen2Tokenizer": ("models.qwen2.tokenization_qwen2", "Qwen2Tokenizer")}
CLASSES = {
    "gpt_oss": PLAIN,
    "llama": PLAIN | GPT2,
    "qwen2": QWEN2,
    "qwen3": QWEN2,
    "qwen3_moe": QWEN2,
    "smollm3": PLAIN,
}
"""Type of the model -> `tokenizer_class` in tokenizer_config.json -> module and name of the class that reads it."""


@dataclass(frozen=True)
class Vocabulary:
    size: int | None = None  # ids are below it; None: unknown
    fingerprint: str = ""  # of all ids and their tokens; empty: unknown (the trace engine has no tokens)

    def check(self, other: Vocabulary, name: str, other_name: str, remedy: str) -> None:
        """Raises `ConfigError` if the ids of `other` have other meanings."""
        if self.fingerprint and other.fingerprint and self.fingerprint != other.fingerprint:
            raise ConfigError(
                f"{other_name} has another tokenizer ({other.size} tokens, fingerprint {other.fingerprint})"
                f" than {name} ({self.size} tokens, fingerprint {self.fingerprint}): its token ids have other"
                f" meanings; {remedy}"
            )


def read_vocabulary(file: Path) -> Vocabulary:
    """Of a tokenizer.json; with the model's config.json next to it, the size is that of the model's output."""
    from tokenizers import Tokenizer

    tokens: dict[str, int] = Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)
    text = json.dumps(sorted(tokens.items(), key=lambda item: item[::-1]))
    size = max(tokens.values(), default=-1) + 1
    model = file.parent / "config.json"
    if model.is_file():
        size = max(size, int(json.loads(model.read_text()).get("vocab_size", 0)))
    return Vocabulary(size, hashlib.blake2b(text.encode(), digest_size=8).hexdigest())


def read_tokenizer(folder: Path) -> Any:
    """transformers' tokenizer of that folder, as `AutoTokenizer` reads it. Raises errors of several libraries.

    `AutoTokenizer` imports torch, which takes seconds: where the class that it would choose is known, that class is
    imported instead.
    """
    module, name = class_of(folder) or ("models.auto.tokenization_auto", "AutoTokenizer")
    return getattr(import_module(f"transformers.{module}"), name).from_pretrained(folder, local_files_only=True)


class _Late(BaseException):
    """Raised in the thread that renders. Of no kind that a template or its library catches."""


class _Watch:
    """Ends what takes too long, by an exception in its thread: a template is Python code without a limit of its own.

    The thread that watches lives while something is rendered, and a moment longer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[int, float] = {}  # thread -> its processor time at which it is late
        self._watched = False

    def begin(self) -> None:
        with self._lock:
            self._until[threading.get_ident()] = time.thread_time() + RENDER_S
            if not self._watched:
                self._watched = True
                threading.Thread(target=self._watch, name="templates", daemon=True).start()

    def end(self) -> None:
        """Raises `_Late` if that is on its way."""
        with self._lock:
            late = self._until.pop(threading.get_ident(), None) is None
        while late and not isinstance(sys.exception(), _Late):
            time.sleep(0)

    def _watch(self) -> None:
        idle = False
        while True:
            time.sleep(LOOK_S)
            with self._lock:
                if idle and not self._until:
                    self._watched = False
                    return
                idle = not self._until
                for thread, until in list(self._until.items()):
                    if time.clock_gettime(time.pthread_getcpuclockid(thread)) > until:
                        del self._until[thread]
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_Late))


_watch = _Watch()


def _forked() -> None:
    """The thread is in the parent only."""
    global _watch
    _watch = _Watch()


os.register_at_fork(after_in_child=_forked)


def render(tokenizer: Any, chat: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """The chat as the tokenizer's template writes it. A template is a program of the model's author: it stays in its
    sandbox, and is stopped after `RENDER_S`. Raises `ConfigError` for that, and whatever the template raises."""
    try:
        _watch.begin()
        try:
            return str(tokenizer.apply_chat_template(chat, tokenize=False, **options))
        finally:
            _watch.end()
    except _Late:
        raise ConfigError(
            f"the chat template does not end: it was stopped after {RENDER_S:g} s for a chat of {len(chat)} messages;"
            " set model.chat_template to another one"
        ) from None


def class_of(folder: Path) -> tuple[str, str] | None:
    """Module and name of the class that `AutoTokenizer` would choose; None: only it knows."""
    if not version("transformers").startswith(TRIED):
        return None
    try:
        model, about = (json.loads((folder / name).read_text()) for name in ("config.json", "tokenizer_config.json"))
        found = CLASSES[model["model_type"]][about["tokenizer_class"]]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    special = "auto_map" in model or "auto_map" in about or "model_name" in model
    return None if special else found
