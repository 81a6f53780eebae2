"""`rhymed history audit`: was every sample of a run trained exactly once, or dropped with a reason?

Three records must agree: the plan (the prompts of each step, from the configuration and the dataset), the store (the
state of each sample), and the lineage in the newest checkpoint (what each step was trained on). Reads only. A sample
of a step that no checkpoint covers may be in any state.

`Planned` is what the plan says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rhymed.core.config import Config, Schedule
from rhymed.core.errors import ConfigError, RhymedError, StoreDamaged
from rhymed.core.messages import NO_SIGNAL, NOT_PLANNED, Drawn, SampleId
from rhymed.core.run import checkpoint
from rhymed.core.steps import is_training, window
from rhymed.core.text import counted, step_name
from rhymed.records.history.folder import RunFolder
from rhymed_broker.plan import Plan, mixture_of, sampler_of
from rhymed_store.browse import Response
from rhymed_workers.trainer import lineage
from rhymed_workers.trainer.lineage import Digest, Line
from rhymed_workers.trainer.turns import problem

SHOWN = 20  # faults that are listed


@dataclass
class Audit:
    """The result for one run. `wrong`: one sentence per fault; empty: every sample is accounted for."""

    steps: int = 0  # in the newest checkpoint
    begins: int = 0  # steps before the store's first one: the run was resumed without history
    planned: int = 0  # of the whole run
    prompts: int = 0  # in the dataset
    asked: int = 0  # prompts of the steps in the checkpoint, as the plan has them
    trained: int = 0  # samples of these steps
    tokens: int = 0  # of the trained samples
    filtered: int = 0  # groups without signal: samples that were dropped with them
    dropped: int = 0  # the others
    later: int = 0  # samples of steps that no checkpoint covers yet
    staleness: int = 0  # of the oldest token that was trained, steps
    reasons: dict[str, int] = field(default_factory=dict)  # why dropped -> samples
    wrong: list[str] = field(default_factory=list)

    @property
    def epochs(self) -> float:
        """Passes over the dataset."""
        return self.asked / self.prompts if self.prompts else 0.0


def audit(folder: RunFolder) -> Audit:
    """Raises `ConfigError` or `DataError` where the run's plan cannot be derived."""
    if folder.config is None:
        raise ConfigError(f"{folder.folder} has no config.json that this release reads, so its plan is unknown")
    steps, lines, wrong = newest(folder.folder)
    plan = planned(folder.config, folder.folder, steps, folder.browse.drawn_steps())
    asked = sum(len(plan.prompts(step)) for step in range(steps))
    found = Audit(steps, folder.browse.begins(), plan.steps, len(plan.ids), asked, wrong=wrong)
    _Check(folder, folder.config.schedule, plan, found).run(lines)
    return found


def render(found: Audit, name: str) -> str:
    lines = [
        f"{name}: {found.steps} of {counted(found.planned, 'step')} in the newest checkpoint"
        f" ({found.epochs:.2f} epochs of {counted(found.prompts, 'prompt')})",
        f"trained: {counted(found.trained, 'sample')}, {counted(found.tokens, 'token')},"
        f" at most {counted(found.staleness, 'step')} stale",
        *([f"not in the store, which begins later: {counted(found.begins, 'step')}"] if found.begins else []),
        *([f"filtered, without signal: {counted(found.filtered, 'sample')}"] if found.filtered else []),
        f"dropped: {counted(found.dropped, 'sample')}",
    ]
    lines += [f"  {count:,} x {reason}" for reason, count in Counter(found.reasons).most_common(SHOWN)]
    if found.later:
        lines.append(f"of later steps, in progress: {counted(found.later, 'sample')}")
    if not found.wrong:
        return "\n".join([*lines, "every sample is accounted for, exactly once"])
    return "\n".join([*lines, *listed(found.wrong)])


def listed(wrong: Sequence[str]) -> list[str]:
    more = [f"and {len(wrong) - SHOWN:,} more"] if len(wrong) > SHOWN else []
    return [f"wrong: {fault}" for fault in wrong[:SHOWN]] + more


def newest(folder: Path) -> tuple[int, list[Line], list[str]]:
    """Steps of the newest valid checkpoint, its lineage, and what is wrong with either."""
    if (found := checkpoint.newest(folder / "checkpoints")) is None:
        return 0, [], []
    try:
        return found.step, lineage.read(found.folder), []
    except FileNotFoundError:
        why = "has no lineage.jsonl"
    except (OSError, ValueError) as error:
        why = f"has a lineage that cannot be read: {error}"
    return found.step, [], [f"{found.folder} {why}"]


class _Check:
    """One pass over the store, prompt by prompt, which is the order of the digests."""

    def __init__(self, folder: RunFolder, schedule: Schedule, plan: Planned, found: Audit) -> None:
        self._folder, self._schedule, self._plan, self._found = folder, schedule, plan, found
        self._digests = {step: Digest() for step in range(found.begins, found.steps)}
        self._steps: dict[str, set[int]] = {prompt: set() for prompt in plan.ids}  # of the checkpoint, in the plan
        for step in range(found.steps):
            for prompt in plan.prompts(step) if step >= found.begins else ():
                self._steps[prompt].add(step)
        self._later: dict[int, frozenset[str]] = {}  # prompts of later steps, few of which have begun
        self._acts = folder.config is not None and folder.config.environment.active
        self._unfinished = set(folder.browse.in_progress())

    def run(self, lines: Sequence[Line]) -> None:
        for prompt in sorted({*self._folder.browse.ids(), *self._plan.ids}):
            try:
                self._prompt(prompt)
            except StoreDamaged as error:
                self._wrong(f"prompt {prompt} cannot be read: {error}")
        self._lineage(lines)

    def _wrong(self, what: str) -> None:
        self._found.wrong.append(what)

    def _prompt(self, prompt: str) -> None:
        """Every stored sample must be planned; of a step in the checkpoint every planned sample must be stored."""
        browse = self._folder.browse
        drops = {id: reason for id, reason in browse.drops(prompt).items() if is_training(id.step)}
        responses = browse.responses(prompt)
        written = {response.info.id: response for response in responses if is_training(response.info.id.step)}
        group, planned = range(self._plan.group_size), sorted(self._steps.get(prompt, ()))
        for id in sorted({*drops, *written}):
            if drops.get(id) == NOT_PLANNED:
                self._drop(id, NOT_PLANNED)
            elif not self._planned(id) or id.index not in group:
                self._wrong(f"sample {id} is in the store, but not in the plan")
            elif id.step >= self._found.steps:
                self._found.later += 1
            else:
                self._sample(id, written.get(id), drops.get(id))
        self._whole(prompt, planned, {*drops, *written})

    def _planned(self, id: SampleId) -> bool:
        if id.step < self._found.steps:
            return id.step in self._steps.get(id.prompt, ())
        if id.step not in self._later:
            inside = id.step < self._plan.steps
            self._later[id.step] = frozenset(self._plan.prompts(id.step) if inside else ())
        return id.prompt in self._later[id.step]

    def _whole(self, prompt: str, planned: Iterable[int], there: set[SampleId]) -> None:
        """No sample of its groups is missing, and every epoch has the prompt once."""
        found = self._found
        for step in planned:
            for index in range(self._plan.group_size):
                if (id := SampleId(step, prompt, index)) not in there:
                    self._wrong(f"sample {id} is not in the store: neither trained nor dropped")
        times = len({id.step for id in there if id.step < found.steps})
        apart = 1 if self._plan.drawn else 0  # steps that are refilled draw before and after others
        fewest, most = int(found.epochs) - apart, int(found.epochs) + 1 + apart
        if self._plan.once and not found.begins and prompt in self._steps and not fewest <= times <= most:
            self._wrong(f"prompt {prompt} was asked {times} times in {found.epochs:.2f} epochs")

    def _sample(self, id: SampleId, response: Response | None, reason: str | None) -> None:
        """A sample of a step in the checkpoint."""
        if response is None or response.state == "dropped":
            self._drop(id, reason or (response.reason if response else ""))
            return
        self._digests[id.step].add(id, response.tokens, response.info.reward)
        self._found.trained += 1
        self._found.tokens += response.info.length
        self._found.wrong.extend(turn_faults(response, acts=self._acts, unfinished=self._unfinished))
        if response.state != "trained":
            self._wrong(
                f"sample {id} is {response.state}, though a checkpoint covers its step: not marked as trained"
            )
        if reason is not None:
            self._wrong(f"sample {id} is {response.state}, and was dropped as well: {reason}")
        oldest, newest = window(id.step, self._schedule.max_staleness)
        versions = [version for version, _ in response.info.versions] or [newest]
        self._found.staleness = max(self._found.staleness, id.step - min(versions))
        if not oldest <= min(versions) <= max(versions) <= newest:
            self._wrong(
                f"sample {id} has tokens of the versions {min(versions)} to {max(versions)}, its step takes"
                f" {oldest} to {newest}"
            )

    def _drop(self, id: SampleId, reason: str) -> None:
        found = self._found
        if reason.startswith(NO_SIGNAL):
            found.filtered += 1
            return
        found.dropped += 1
        if not reason:
            self._wrong(f"sample {id} was dropped without a reason")
        kind = _kind(reason)
        found.reasons[kind] = found.reasons.get(kind, 0) + 1

    def _lineage(self, lines: Sequence[Line]) -> None:
        """Every step must be in the lineage once, and trained on the samples in the store."""
        counts = Counter(line.step for line in lines)
        for step in self._digests:
            if counts[step] != 1:
                times = f"is {counts[step]} times in" if counts[step] else "is missing in"
                self._wrong(f"{step_name(step)} {times} the lineage of the newest checkpoint")
        for line in (line for line in lines if line.step >= self._found.begins):
            if line.step not in self._digests:
                self._wrong(f"{step_name(line.step)} is in the lineage, which ends with step {self._found.steps}")
            elif why := differ(line, self._digests[line.step].line(line.step, line.weights)):
                self._wrong(f"{step_name(line.step)} was not trained on the samples in the store: {why}")


def turn_faults(response: Response, *, acts: bool, unfinished: Container[SampleId]) -> Iterator[str]:
    """Of a complete sample: turns and rows are those of its tokens, and none is left over. `acts`: the run has an
    environment. Turns of a sample that was dropped before its end stay in the store until a checkpoint covers its
    step: no fault."""
    info = response.info
    if why := problem(info):
        yield f"sample {info.id} has {why}"
    elif acts and not info.turns:
        yield f"sample {info.id} has no turns, though the run has an environment: whose its tokens are is lost"
    if info.id in unfinished:
        yield f"sample {info.id} is complete, and the store has turns of it that are in progress"


def differ(first: Line, second: Line) -> str:
    """How two lines of one step differ; empty if they do not."""
    if (first.samples, first.tokens) != (second.samples, second.tokens):
        counts = (f"{counted(line.samples, 'sample')} of {counted(line.tokens, 'token')}" for line in (first, second))
        return " against ".join(counts)
    if first.digest != second.digest:
        return f"as many samples and tokens ({first.samples:,}, {first.tokens:,}), but other tokens or rewards"
    if first.weights and second.weights and first.weights != second.weights:
        return "the same samples, but other weights after them"
    return ""


def _kind(reason: str) -> str:
    """A reason without its numbers: reasons that differ only in those are counted together."""
    import re

    return re.sub(r"\d+(\.\d+)?", "N", reason) or "(no reason)"


# Which prompts every step of a run should have trained on: the plan, and what its steps drew from it.


class Planned(Plan):
    """At least as long as what was trained, even if the run was shortened since.

    `drawn`: of the steps whose draws were journaled, because they or earlier ones were refilled.
    """

    def __init__(
        self, prompts: Sequence[Sequence[str]], config: Config, steps: int, drawn: Iterable[Drawn] = ()
    ) -> None:
        """`prompts`: of each dataset."""
        rollout, trainer = config.rollout, config.trainer
        mixture = mixture_of(config.data, prompts, config.run.seed)
        sampler = sampler_of(config, mixture.size)
        super().__init__(
            mixture, rollout.prompts_per_step, rollout.group_size, trainer.epochs, trainer.steps, sampler=sampler
        )
        self.ids = sorted(prompt for part in prompts for prompt in part)
        self.once = len(prompts) == 1 and sampler is None  # an epoch has every prompt once
        self.steps = max(self.steps, steps)
        self.drawn = {one.step: one for one in drawn}
        if sampler is not None:
            sampler.recall(sorted((one.step, one.rates) for one in self.drawn.values()))

    def prompts(self, step: int) -> list[str]:
        """First those that the step began with, then those that replaced groups without signal.

        A step that is not trained yet may have any prompt, once earlier steps were refilled.
        """
        if drawn := self.drawn.get(step):
            first, _ = self.draw(drawn.start, self.prompts_per_step)
            return first + self.draw(drawn.refill, drawn.refilled, first)[0]
        if self.drawn and step > min(self.drawn):
            return self.ids
        return super().prompts(step)


def planned(config: Config, folder: Path, steps: int, drawn: Iterable[Drawn] = ()) -> Planned:
    """Raises `ConfigError` where the dataset cannot be read, `DataError` where it is too small."""
    from rhymed.inputs.prepared import rows_of
    from rhymed.inputs.rows import prompt_id

    try:
        rows = [rows_of(config, folder, data) for data in config.data.parts]
    except (RhymedError, OSError) as error:
        raise ConfigError(f"the dataset, from which the plan follows, cannot be read: {error}") from None
    return Planned([[prompt_id(row) for row in part] for part in rows], config, steps, drawn)
