"""The reward of real answers: the reference, and nonsense, in a real scoring process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rhymed.check.report import Section
from rhymed.core.config import Config, Eval, Reward
from rhymed.core.errors import RewardError
from rhymed.core.text import truncated
from rhymed.inputs.rows import Row

if TYPE_CHECKING:
    from rhymed_workers.reward.outcome import Outcome
    from rhymed_workers.reward.preview import Loading
    from rhymed_workers.reward.scorers.result import Verdict

NONSENSE = "banana"
SHOWN_CHARS = 600
WHOLE = "all samples of a prompt in one call (reward.call = 'sample': each one as soon as it is written)"
RIGHT_LABEL, EMPTY_LABEL, NONSENSE_LABEL = "right answer", "no answer", "nonsense"


def answers(reward: Reward, row: Row) -> dict[str, str]:
    """By label: the row's reference, or an empty answer if it has none, and nonsense."""
    wrap = {"tag": "<answer>{}</answer>", "boxed": "\\boxed{{{}}}"}
    kinds = [scorer.answer for scorer in reward.all if scorer.answer in wrap]
    form = wrap[kinds[0]] if kinds else "{}"
    right = reference(reward, row)
    nonsense = "0" if any(scorer.answer == "last_number" for scorer in reward.all) else NONSENSE
    known = {RIGHT_LABEL: form.format(right)} if right else {EMPTY_LABEL: ""}
    return {**known, NONSENSE_LABEL: form.format(NONSENSE if nonsense != right else nonsense)}


def reference(reward: Reward, row: Row) -> str:
    """The row's reference answer as text; empty if it has none."""
    from rhymed_workers.reward.scorers.answer import reference_text

    names = [str(scorer.args["column"]) for scorer in reward.all if "column" in scorer.args]
    for column in (*names, ""):
        try:
            return reference_text(row, column)
        except RewardError:
            continue
    return ""


def describe(config: Config, row: Row, answers: Mapping[str, str], scorers: Loading | None = None) -> Section:
    """Scores the answers to the row, by `scorers` if they are loaded. Raises `RewardError` if a scorer cannot be, or
    a judge cannot be asked."""
    from rhymed_workers.reward.outcome import combine
    from rhymed_workers.reward.preview import preview
    from rhymed_workers.reward.scorers.answer import REFERENCE_COLUMNS

    section = Section("reward (row 1)")
    if all(scorer.scorer == "environment" for scorer in config.reward.all):
        section.add("reward", "what the environment gives when it is played, so not known before the run")
        return section
    rewards: dict[str, float] = {}
    doubts: list[str] = []
    if RIGHT_LABEL not in answers:
        section.add(RIGHT_LABEL, f"not known: the row has no column {', '.join(REFERENCE_COLUMNS)}")
    texts = list(answers.values())
    result = scorers.preview(row, texts) if scorers else preview(config, row, texts)
    section.warnings += result.warnings
    for (label, text), verdicts in zip(answers.items(), result.verdicts, strict=True):
        outcome = combine(config.reward.all, verdicts)
        section.add(label, truncated(text, SHOWN_CHARS) or "(nothing)")
        section.add("  reward", _sum(config.reward, verdicts, outcome.reward))
        if any(verdict.unplayed for verdict in verdicts):
            section.rows[-1] = ("  reward", "reads environments after their episodes, so not known before the run")
        elif outcome.reward is not None:
            rewards[label] = outcome.reward
        elif any(verdict.unsuitable for verdict in verdicts):
            section.errors.append(f"reward: no answer to row 1 can be scored: {outcome.error}")
        elif label == RIGHT_LABEL:
            section.errors.append(f"reward: scoring {label!r} of row 1 fails: {outcome.error}")
        else:
            doubts.append(_failure(text, config.reward, outcome))
    for index in result.whole:
        section.add(f"{config.reward.all[index].label} gets", WHOLE)
    section.rows += [("isolation" if number == 0 else "", note) for number, note in enumerate(result.notes)]
    section.errors = section.errors[:1]
    section.warnings += [] if section.errors else doubts
    section.warnings += _doubts(config.eval, rewards, answers[NONSENSE_LABEL])
    return section


def _failure(text: str, reward: Reward, outcome: Outcome) -> str:
    fate = {"drop": "samples like it are dropped", "zero": "samples like it get 0"}
    return (
        f"reward: scoring {text!r} for row 1 fails: {outcome.error}; reward.on_error ="
        f" {reward.on_error!r}: {fate.get(reward.on_error, 'the run would stop')}"
    )


def _doubts(eval: Eval, rewards: dict[str, float], nonsense_text: str) -> Iterator[str]:
    """Warnings about the reward function. `rewards`: by label, of the answers that could be scored."""
    right, nonsense = rewards.get(RIGHT_LABEL), rewards.get(NONSENSE_LABEL)
    if right is not None and nonsense is not None and right <= nonsense:
        yield (
            f"reward: the right answer gets {right:g}, and {nonsense_text!r} gets {nonsense:g}: such a reward"
            " teaches nothing useful; check reward.scorer, reward.answer and the column with the right answer"
        )
    elif right is None and nonsense and nonsense == rewards.get(EMPTY_LABEL):
        yield (
            f"reward: {nonsense_text!r} gets {nonsense:g}, and so does an empty answer: a constant reward teaches"
            " nothing"
        )
    if eval.datasets and right is not None and right < eval.threshold:
        yield (
            f"eval.threshold = {eval.threshold:g}, but the right answer itself gets {right:g}: no response"
            " would count as right; set eval.threshold to the least reward of a right one"
        )


def _sum(settings: Reward, verdicts: Sequence[Verdict], reward: float | None) -> str:
    several = len(settings.all) > 1
    parts = []
    for scorer, verdict in zip(settings.all, verdicts, strict=False):
        if verdict.error is not None:
            parts.append(f"{scorer.label} fails: {verdict.error}")
        elif verdict.reward is None:
            parts.append(f"{scorer.label}: does not apply")
        else:
            parts.append(f"{scorer.label} {verdict.reward:g}" + (f" x {scorer.weight:g}" if several else ""))
    if reward is None:
        return f"none: {'; '.join(parts)}"
    return f"{reward:g} = {' + '.join(parts)}" if several else f"{reward:g} (by {settings.all[0].label})"
