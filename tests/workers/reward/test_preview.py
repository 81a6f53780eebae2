"""One answer through real scoring subprocesses."""

from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.core.errors import RewardError
from rhymed_workers.reward.preview import Loading, preview

SCORERS = """
import os, time

def crash(completions): os._exit(3)
def hang(completions): time.sleep(60)
def skip(completions): return [None]
"""


def test_every_scorer_has_its_verdict_also_after_a_crash(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCORERS)
    names = [f"{tmp_path}/mine.py:{name}" for name in ("crash", "hang", "skip")]
    scorers = [*({"scorer": name} for name in names), {"scorer": "exact"}, {"scorer": "length_penalty"}]
    config = Config.model_validate({"reward": {"scorers": scorers, "timeout_s": 2.0}})
    crash, hang, skip, exact, penalty = preview(config, {"prompt": "q", "answer": "4"}, ["4"]).verdicts[0]
    assert "crash: the scoring process ended with exit status 3" in str(crash.error)
    assert hang.timeout
    assert "hang took longer than reward.timeout_s = 2 s" in str(hang.error)
    assert (skip.label, skip.reward, skip.error) == ("skip", None, None)
    assert (exact.reward, penalty.reward) == (1.0, 0.0)


def test_what_cannot_be_loaded_is_raised(tmp_path: Path) -> None:
    config = Config.model_validate({"reward": {"scorers": [{"scorer": "exact"}, {"scorer": "maths"}]}})
    with pytest.raises(RewardError, match=r"reward\.scorers\[1\]\.scorer: no scorer 'maths'; known: .*math"):
        preview(config, {"prompt": "q", "answer": "4"}, ["4"])


def test_a_process_that_loads_in_the_background_scores_and_ends(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        f"import os\nopen({str(tmp_path / 'starts')!r}, 'a').write('.')\n"
        "def pid(completions): return [float(os.getpid())]\ndef crash(completions): os._exit(3)\n"
    )
    starts = tmp_path / "starts"

    def config(name: str) -> Config:
        return Config.model_validate({"reward": {"scorer": f"{tmp_path}/mine.py:{name}"}})

    with Loading(config("pid")) as scorers:
        assert scorers.loaded()
        verdicts = scorers.preview({"prompt": "q"}, ["4", "5"]).verdicts
    assert starts.read_text() == "."
    assert verdicts[0][0].reward == verdicts[1][0].reward
    with Loading(config("crash")) as scorers:  # a crash costs one answer
        errors = [str(verdict.error) for (verdict,) in scorers.preview({}, ["4", "5"]).verdicts]
    assert ["exit status 3" in error for error in errors] == [True, True]
    with Loading(config("absent")) as scorers, pytest.raises(RewardError, match="absent"):
        scorers.loaded()
