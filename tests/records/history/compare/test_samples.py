"""`rhymed history compare`: two runs have the same samples, or it is told which not, and how close it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from rhymed.core.messages import EVAL, ForgetLogprobs, SampleId, SampleInfo
from rhymed.core.run.provenance import Start
from rhymed.histospec.sampling.noise import gumbel
from rhymed_store.client import NewSample
from rhymed_workers.engines.base import seed_of, turn_seed
from tests.records.history.folders import APPLES, PEARS, two_epochs
from tests.records.history.sessions import ADD, GOT, PLAIN, RAISED, begin, complete
from tests.store.stores import LocalStore

PROMPT = 3  # tokens, see `folders`


def test_runs_of_the_same_samples(make_run: Callable[..., Path], rhymed) -> None:
    status, out, err = rhymed("compare", make_run("one"), make_run("two"))
    assert (status, err) == (0, "")
    assert out.startswith("one and two: 8 samples in both, 124 tokens\nall of these have the same tokens")


def test_a_difference_is_told_with_its_place_and_how_close_it_was(make_run: Callable[..., Path], rhymed) -> None:
    changed = [
        (step, prompt, index, [*tokens[:4], 99, *tokens[5:]] if (step, index) == (2, 1) else tokens, reward)
        for step, prompt, index, tokens, reward in two_epochs()
    ]
    status, out, _ = rhymed("compare", make_run("one"), make_run("two", changed))
    noise = gumbel(seed_of(0, SampleId(2, APPLES, 1)), PROMPT + 4, 100)
    assert status == 1
    assert "7 have the same tokens, 1 differ; the earliest:" in out
    assert f"2/{APPLES}/1: from token 5 on, scores {abs(noise[99] - noise[44]):.1g} apart" in out


def test_samples_in_turns_are_compared_turn_by_turn(make_run: Callable[..., Path], rhymed) -> None:
    folders = [make_run(name, []) for name in ("one", "two")]
    for number, folder in enumerate(folders):
        local = LocalStore(folder / "store")
        own = [60 + number, 50, 51]
        for sample, parts in (
            (GOT, [([40, 41], [66], [ADD]), (own, [], [])]),  # the policy wrote otherwise
            (RAISED, [([40, 41], [66 + number], [ADD]), ([50], [], [])]),  # its environment answered otherwise
            (PLAIN, [([40, 41], [66], [ADD]), ([50], [], [])]),
        ):
            begin(local, sample, parts)
            complete(local, sample, parts, turns=[2, 2] if number and sample == PLAIN else None)
        local.database.close()
    status, out, _ = rhymed("compare", *folders)
    before = [0, 1, 2], [40, 41, 66]
    noise = gumbel(turn_seed(seed_of(0, GOT), *before), PROMPT + 3, 100)
    assert status == 1
    assert f"{GOT}: from token 4 on, scores {abs(noise[60] - noise[61]):.1g} apart" in out
    assert f"{RAISED}: from token 3 on, which its environment wrote" in out
    assert "the same tokens in other turns: 1 sample" in out
    assert "unknown how close" not in out


def test_a_near_tie_is_no_difference(make_run: Callable[..., Path], rhymed) -> None:
    """The stored log-probs are 0, so the noise alone decides: two tokens of nearly the same noise."""
    id = SampleId(0, APPLES, 0)
    noise = gumbel(seed_of(0, id), PROMPT, 100_000)
    order = np.argsort(noise)
    at = int(np.argmin(np.diff(noise[order])))
    first, second = ([(0, APPLES, 0, [int(order[at + more]), 5], 1.0)] for more in (0, 1))
    folders = make_run("one", first), make_run("two", second)
    status, out, _ = rhymed("compare", *folders)
    assert status == 0
    assert "0 have the same tokens, 1 differ, 1 of them in a near tie" in out
    assert "rollout.exact = 'distribution' promises equal distributions" in out
    assert rhymed("compare", *folders, "--json")[0] == 0
    promises(folders[0], "tokens")
    assert rhymed("compare", *folders)[0] == 0, "the weaker promise counts"
    promises(folders[1], "tokens")
    status, out, _ = rhymed("compare", *folders)
    assert (status, "not even a near tie may differ" in out) == (1, True)
    for folder, gpu in zip(folders, ("NVIDIA H100", "NVIDIA L4"), strict=True):
        promises(folder, "tokens", deterministic=True)
        started(folder, accelerators=gpu)
    status, out, _ = rhymed("compare", *folders)
    assert (status, "the hardware differs (NVIDIA H100 and NVIDIA L4): tokens may" in out) == (0, True)
    started(folders[1], accelerators="NVIDIA H100, NVIDIA H100")
    assert rhymed("compare", *folders)[0] == 1
    promises(folders[1], "tokens")
    status, out, _ = rhymed("compare", *folders)
    assert (status, "without trainer.deterministic = true: tokens may" in out) == (0, True)


def promises(run: Path, exact: str, *, deterministic: bool = False) -> None:
    config = json.loads((run / "config.json").read_text())
    config["rollout"]["exact"] = exact
    config["trainer"]["deterministic"] = deterministic
    (run / "config.json").write_text(json.dumps(config))


def started(run: Path, **machine: str) -> None:
    start = Start(t=0.0, command="rhymed run", folder="/", versions={"vllm": "0.32.0"}, machine=machine)
    (run / "starts.jsonl").write_bytes(msgspec.json.encode(start))


def test_what_only_one_has_and_other_rewards_are_counted(make_run: Callable[..., Path], rhymed) -> None:
    samples = [(0, APPLES, 0, [5, 6], 1.0), (0, PEARS, 0, [7], 0.0)]
    less = [(0, APPLES, 0, [5, 6], 0.5), (-1, PEARS, 0, [7], None)]
    status, out, _ = rhymed("compare", make_run("one", samples), make_run("two", less), "--json")
    found = json.loads(out)
    assert status == 1
    assert (found["both"], found["rewards"], found["only_first"], found["only_second"]) == (1, 1, 1, 0)


def test_a_response_that_ends_earlier_differs_where_it_ends(make_run: Callable[..., Path], rhymed) -> None:
    long, short = ([(0, APPLES, 0, tokens, 1.0)] for tokens in ([5, 6, 7], [5, 6]))
    status, out, _ = rhymed("compare", make_run("one", long), make_run("two", short))
    assert status == 1
    assert out.count("from token 3 on\n") == 1
    assert "unknown how close" in out


def test_without_the_same_noise_nothing_is_near(make_run: Callable[..., Path], rhymed) -> None:
    one, two = ([(0, APPLES, 0, [token], 1.0)] for token in (5, 6))
    folders = make_run("one", one), make_run("two", two)
    config = json.loads((folders[1] / "config.json").read_text())
    config["run"]["seed"] = 7
    (folders[1] / "config.json").write_text(json.dumps(config))
    status, out, _ = rhymed("compare", *folders)
    assert (status, "from token 1 on\nunknown how close" in out) == (1, True)


def test_the_earliest_difference_is_told_first(make_run: Callable[..., Path], rhymed) -> None:
    ids = sorted((APPLES, PEARS))
    one, two = ([(7, ids[0], 0, [token, 5], 1.0), (1, ids[1], 0, [token, 5], 1.0)] for token in (40, 60))
    lines = rhymed("compare", make_run("one", one), make_run("two", two))[1].splitlines()
    assert [line.split("/")[0].strip() for line in lines[2:]] == ["1", "7"]


def test_a_checkpoint_lets_the_log_probs_go(make_run: Callable[..., Path], rhymed) -> None:
    one, two = ([(0, APPLES, 0, [token], 1.0)] for token in (5, 6))
    folders = make_run("one", one), make_run("two", two)
    local = LocalStore(folders[1] / "store")
    local.do(lambda batch: local.writes.forget_logprobs(batch, ForgetLogprobs(below_step=1)))
    local.database.close()
    status, out, _ = rhymed("compare", *folders)
    assert (status, "log-probs, which checkpoints delete" in out) == (1, True)


def test_evaluations_are_compared_too(make_run: Callable[..., Path], rhymed) -> None:
    one, two = ([(EVAL + 2, APPLES, 0, [token], 1.0)] for token in (5, 6))
    status, out, _ = rhymed("compare", make_run("one", one), make_run("two", two))
    assert (status, "1 differ" in out) == (1, True)
    assert f"eval-v2/{APPLES}/0: from token 1 on" in out


def test_nothing_is_the_same_as_itself_or_as_nothing(make_run: Callable[..., Path], rhymed) -> None:
    full, empty = make_run("one"), make_run("two", [(-1, APPLES, 0, [5], None)])
    status, _, err = rhymed("compare", full, full)
    assert (status, "are the same run" in err) == (2, True)
    status, out, _ = rhymed("compare", empty, make_run("three", [(-1, APPLES, 0, [5], None)]))
    assert (status, "nothing to compare" in out) == (1, True)


def test_another_prompt_is_another_question(make_run: Callable[..., Path], rhymed) -> None:
    """The same row, worded otherwise: equal answers say nothing."""
    folders = make_run("one", []), make_run("two", [])
    for folder, prompt in zip(folders, ([1, 2], [1, 3]), strict=True):
        local, id = LocalStore(folder / "store"), SampleId(0, APPLES, 0)
        info = SampleInfo(id=id, prompt_length=2, length=1, finish_reason="stop", versions=[(0, 1)])
        local.put(NewSample(info, np.array(prompt, np.uint32), np.array([5], np.uint32), np.zeros(1, np.float32)))
        local.database.close()
    status, out, _ = rhymed("compare", *folders)
    assert (status, "with different prompt tokens: 1 sample" in out) == (1, True)
