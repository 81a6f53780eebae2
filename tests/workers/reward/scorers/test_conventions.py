"""What users' functions get: TRL's and verl's parameters, one sample or a whole group, and what they may say beside a
reward."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rhymed.core.config import Config
from rhymed.core.errors import RewardError
from rhymed_workers.reward.scorers import custom
from rhymed_workers.reward.scorers.load import RewardFunction, load_scorers
from rhymed_workers.reward.scorers.result import Verdict
from rhymed_workers.reward.scorers.setting import MESSAGES, STATE, TRANSCRIPT, Response

CHAT = {"prompt": [{"role": "user", "content": "2 + 2?"}], "answer": "4"}
TEXT = {"prompt": "2 + 2?", "answer": "4"}

ADD = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}
CALL = {"role": "assistant", "content": "", "tool_calls": [ADD]}
RESULT = {"role": "tool", "name": "add", "content": "4"}
SAID = [CALL, RESULT, {"role": "assistant", "content": "It is 4."}]
PLAYED = {TRANSCRIPT: "<tool_call>...</tool_call> 4 It is 4.", MESSAGES: SAID}

Load = Callable[..., RewardFunction]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def write(source: str, function: str = "reward", **settings: Any) -> RewardFunction:
        (tmp_path / "mine.py").write_text(textwrap.dedent(source))
        reward, rest = settings.pop("reward", {}), settings
        config = {"reward": {"scorer": f"{tmp_path}/mine.py:{function}", **reward}, **rest}
        (loaded,) = load_scorers(Config.model_validate(config)).values()
        return loaded

    return write


def rewards(function: RewardFunction, *responses: Response) -> list[float]:
    found = function.score(responses)
    return [one.reward for one in found if isinstance(one, Verdict)]


def group(*texts: str, row: dict[str, Any] = TEXT) -> list[Response]:
    return [Response(text, row) for text in texts]


def test_a_function_that_compares_gets_the_whole_group(load: Load) -> None:
    rank = load(
        """
        def reward(prompts, completions, **columns):
            order = sorted(range(len(completions)), key=lambda i: len(completions[i]))
            return [order.index(i) / max(1, len(completions) - 1) for i in range(len(completions))]

        def rare(completions, **columns):
            return [1.0 / completions.count(c) for c in completions]
        """
    )
    assert rank.whole
    assert rewards(rank, *group("aaa", "a", "aa")) == [1.0, 0.0, 0.5]


@pytest.mark.parametrize(
    ("asked", "source", "whole"),
    [
        ("auto", "def reward(completions, **c): return [float(len(c)) for c in completions]", True),
        ("group", "def reward(completions, **c): return [float(len(c)) for c in completions]", True),
        ("sample", "def reward(completions, **c): return [float(len(set(completions)))] * len(completions)", False),
        ("auto", "def reward(solution_str, ground_truth): return 1.0", False),
        ("auto", "def reward(solution_strs, ground_truths, **c): return [1.0] * len(solution_strs)", True),
    ],
)
def test_the_setting_or_the_parameters_decide(load: Load, asked: str, source: str, whole: bool) -> None:
    assert load(source, reward={"call": asked}).whole is whole


def test_a_function_of_one_sample_cannot_have_a_group(load: Load) -> None:
    with pytest.raises(RewardError, match=r"reward.call = 'group': .* has parameters for one sample, and no lists"):
        load("def reward(solution_str, ground_truth): return 1.0", reward={"call": "group"})


def test_a_conversation_comes_with_its_calls_and_results(load: Load) -> None:
    """The numbers are those of TRL 1.16's own call of such functions with these completions."""
    source = """
    def called(completions, **columns):
        return [0.1 * sum(len(m.get("tool_calls") or []) for m in c if m["role"] == "assistant") for c in completions]

    def right(completions, answer, **columns):
        return [0.6 * (a in c[-1]["content"]) for c, a in zip(completions, answer)]

    def waste(completions, **columns):
        return [-1.1 if any(m["role"] == "tool" and "4" in m["content"] for m in c) else -1.5 for c in completions]
    """
    played = Response("It is 4.", CHAT | PLAYED, [5, 6, 7])
    silent = Response("It is 4.", CHAT)
    found = {name: rewards(load(source, name), played, silent) for name in ("called", "right", "waste")}
    assert found == {"called": [0.1, 0.0], "right": [0.6, 0.6], "waste": [-1.1, -1.5]}
    assert rewards(load(source, "right", reward={"answer": "last_number"}), played) == [0.6], "what was extracted"


def test_verls_solution_is_the_whole_response(load: Load) -> None:
    source = "def reward(solution_str, ground_truth): return float('<tool_call>' in solution_str)"
    assert rewards(load(source), Response("It is 4.", TEXT | PLAYED), Response("It is 4.", TEXT)) == [1.0, 0.0]
    batch = """
    def reward(data_sources, solution_strs, ground_truths, extra_infos):
        assert data_sources == extra_infos == [None, None]
        return [float(truth in text and len(solution_strs) == 2) for text, truth in zip(solution_strs, ground_truths)]
    """
    assert rewards(load(batch), *group("it is 4", "5")) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def reward(completion_ids, **kwargs): return [float(len(ids)) for ids in completion_ids]", 2.0),
        ("def reward(**kwargs): return [float(len(c)) for c in kwargs['completions']]", 1.0),
        ("def reward(prompts): return [float(len(prompt)) for prompt in prompts]", 6.0),
        ("def reward(trainer_state, completions): return [float(trainer_state.global_step)] * len(completions)", 3.0),
        ("def reward(completions, answer): return (float(a in c) for c, a in zip(completions, answer))", 1.0),
        ("import numpy as np\ndef reward(completions, **_): return np.ones(len(completions), np.float16)", 1.0),
        ("import torch\ndef reward(completions, **_): return torch.ones(len(completions))", 1.0),
        ("def reward(completions, **_): return [c == '4' for c in completions]", 1.0),
        ("async def reward(completions, **_): return [float(c) for c in completions]", 4.0),
        (
            "class R:\n    def __call__(self, completions): return [float(c) for c in completions]\nreward = R()",
            4.0,
        ),
        (
            "from functools import partial\ndef f(completions, by): return [float(c) * by for c in completions]\n"
            "reward = partial(f, by=2)",
            8.0,
        ),
    ],
)
def test_any_of_trls_parameters(load: Load, source: str, expected: float) -> None:
    assert rewards(load(source), Response("4", TEXT, [7, 8], 3)) == [expected]


def test_environments_are_their_public_attributes(load: Load) -> None:
    source = "def reward(environments, **kwargs): return [float(env.score) for env in environments]"
    function = load(source, environment={"factory": "games.py:Game"})
    assert rewards(function, *(Response("", TEXT | {STATE: {"score": score}}) for score in (2, 3))) == [2.0, 3.0]
    with pytest.raises(RewardError, match="'EnvironmentState' object has no attribute 'score'"):
        function("", TEXT | {STATE: {"points": 1}})
    lenient = "def reward(environments, **kwargs): return [getattr(env, 'score', 0.0) for env in environments]"
    mixed = [Response("", TEXT), Response("", TEXT | {STATE: {"score": 2.0}}), Response("", TEXT | {STATE: None})]
    function = load(lenient, environment={"factory": "games.py:Game"})
    assert rewards(function, *mixed) == [0.0, 2.0, 0.0], "one without a state breaks no other"
    assert rewards(function, *reversed(mixed)) == [0.0, 2.0, 0.0]
    with pytest.raises(RewardError, match="takes environments, and the run has none"):
        load(source)


def test_what_is_logged_is_kept_beside_the_score(load: Load) -> None:
    function = load(
        """
        def reward(completions, log_metric, log_extra, **_):
            log_metric("accuracy", 0.25)
            log_metric("accuracy", 0.75)
            log_extra("found", [c[:1] for c in completions])
            log_extra("length", [len(c) for c in completions])
            return [None if c == "skip" else 1.0 for c in completions]
        """
    )
    first, second = function.score(group("ab", "cde"))
    assert (first, second) == (
        Verdict(1.0, named={"length": 2.0}, notes={"found": "a"}, metrics={"accuracy": 0.5}),
        Verdict(1.0, named={"length": 3.0}, notes={"found": "c"}),
    )


@pytest.mark.parametrize(
    "bookkeeping",
    [
        "log_metric('a', 'no number')",
        "log_metric('a', float('nan'))",
        "log_metric(object(), 1)",
        "log_extra('a', [1])",
        "log_extra('a', 5)",
        "log_extra('a', [Unprintable(), Unprintable()])",
        "log_extra('a', [float('inf'), None])",
    ],
)
def test_a_score_is_not_lost_to_what_is_beside_it(load: Load, bookkeeping: str) -> None:
    source = f"""
    class Unprintable:
        def __str__(self): raise RuntimeError
        __repr__ = __str__

    def reward(completions, log_metric, log_extra, **_):
        {bookkeeping}
        return [1.0, 2.0]
    """
    assert rewards(load(source), *group("a", "b")) == [1.0, 2.0]


def test_one_bad_reward_is_one_samples_error(load: Load) -> None:
    function = load("def reward(completions, **_): return [1.0, float('nan'), 2.0][:len(completions)]")
    first, second, third = function.score(group("a", "b", "c"))
    assert isinstance(second, RewardError)
    assert (first, third) == (Verdict(1.0), Verdict(2.0))


def test_numbers_of_other_libraries_are_rewards(load: Load) -> None:
    assert custom.finite_or_none(np.float32(0.5)) == custom.finite_or_none(torch.tensor(0.5)) == 0.5


SEEN: set[str] = set()
