"""The process of vLLM's tool parsers, when it dies. A package `vllm` on the path, whose parser does as texts say."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.errors import EnvironmentDown
from rhymed_workers.sessions import parsing
from rhymed_workers.sessions.parsing import Parsers, Unreadable, parsers_for

PROTOCOL = "class ChatCompletionRequest:\n    def __init__(self, messages, tools):\n        self.tools = tools\n"
MANAGER = """
import os, signal, sys, time, types

if os.path.exists("BROKEN"):
    sys.exit("no room for vLLM")


class Parser:
    def __init__(self, tokenizer, tools):
        pass

    def extract_tool_calls(self, text, asked):
        what, _, file = text.partition(" ")
        if what == "die" or (what == "once" and not os.path.exists(file)):
            if file:
                open(file, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "sleep":
            time.sleep(600)
        return types.SimpleNamespace(tool_calls=[], content=text)


class ToolParserManager:
    @staticmethod
    def get_tool_parser(name):
        return Parser
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch) -> Path:
    """The file with which no process starts."""
    protocol = tmp_path / "path/vllm/entrypoints/openai/chat_completion/protocol.py"
    protocol.parent.mkdir(parents=True)
    for folder in (protocol.parent, *protocol.parent.parents[:3]):
        (folder / "__init__.py").touch()
    protocol.write_text(PROTOCOL)
    (tmp_path / "path/vllm/tool_parsers.py").write_text(MANAGER.replace("BROKEN", str(tmp_path / "broken")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path / "path"), os.environ.get("PYTHONPATH", ""))))
    return tmp_path / "broken"


def process_of(parsers: Parsers) -> Any:
    assert parsers._process is not None
    return parsers._process


def test_a_death_that_is_not_the_texts_doing_is_not_reported_to_the_policy(broken: Path, tmp_path: Path) -> None:
    parsers = Parsers(None)
    assert parsers.read("any", [], "one") == ([], "one")
    first = process_of(parsers)
    first.kill()
    first.wait()
    text = "two" * 100_000  # more than a pipe takes
    assert parsers.read("any", [], text) == ([], text)
    once = f"once {tmp_path / 'died'}"
    assert parsers.read("any", [], once) == ([], once)
    assert first.stdin.closed
    assert first.stdout.closed
    parsers.close()


@pytest.mark.parametrize("text", ["die", "sleep"])
def test_a_text_with_which_two_processes_end_is_unreadable(broken: Path, monkeypatch, caplog, text: str) -> None:
    parsers = Parsers(None)
    parsers.read("any", [], "one")
    if text == "sleep":
        monkeypatch.setattr(parsing, "PATIENCE_S", 0.2)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(Unreadable, match="the parser ends its process or takes too"),
    ):
        parsers.read("any", [], text)
    (reported,) = caplog.messages
    assert ("no answer within 0.2 s" if text == "sleep" else "it ended (signal SIGKILL)") in reported


HALF = r"printf '\012\000\000\000half';"  # an answer of ten bytes


@pytest.mark.parametrize(
    ("program", "length", "error"),
    [
        ("exec sleep 600", 1_000_000, "no answer within 0.5 s"),  # more than a pipe takes, and it does not read
        (f"{HALF} exec sleep 600", 10, "no answer within 0.5 s"),
        (f"{HALF} exec head -c 4 > /dev/null", 10, "its process ended"),
    ],
)
def test_one_deadline_bounds_a_question_that_is_not_read_and_an_answer_without_an_end(
    program: str, length: int, error: str
) -> None:
    late = error.startswith("no answer")
    with subprocess.Popen(["sh", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        with pytest.raises(OSError, match=error):
            parsing._exchange(process, b"x" * length, 0.5 if late else 60.0)
        assert process.wait() == (-signal.SIGKILL if late else 0)


def test_a_process_that_does_not_start_is_no_texts_fault(broken: Path) -> None:
    parsers = Parsers(None)
    broken.touch()
    for _ in range(2):
        with pytest.raises(EnvironmentDown, match=r"does not start: it ended \(status 1\): .*no room for vLLM"):
            parsers.read("any", [], "one")
    broken.unlink()
    assert parsers.read("any", [], "one") == ([], "one")
    broken.touch()
    with pytest.raises(EnvironmentDown):
        parsers.read("any", [], "die")


def test_a_process_ends_when_nobody_can_ask_it(broken: Path) -> None:
    parsers_for.cache_clear()
    parsers = parsers_for("tokenizer 0")
    parsers.read("any", [], "one")
    process = process_of(parsers)
    for number in range(1, 5):
        parsers_for(f"tokenizer {number}")
    assert parsers.read("any", [], "two") == ([], "two"), "who has it may ask on"
    del parsers
    gc.collect()
    assert process.poll() is not None
    parsers_for.cache_clear()
