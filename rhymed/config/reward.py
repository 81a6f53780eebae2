"""How responses are scored."""

from __future__ import annotations

from typing import Any, Literal, Self, TypeAlias

from pydantic import Field, field_validator, model_validator

from rhymed.config.base import LEAST_GIB, MOST_PROCESSES, NAME_LENGTH, Section
from rhymed.config.parts.judge import Judge

QUEUED = 8  # samples in hand per scoring process, so that none waits for store or broker

Answer: TypeAlias = Literal["full", "tag", "last_number", "boxed"]


class Scorer(Section):
    """One of several scorers."""

    scorer: str = Field(description="as reward.scorer")
    name: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]*$",
        max_length=NAME_LENGTH,
        description="in metrics; empty: the scorer's own name",
    )
    weight: float = Field(1.0, description="of this scorer in the sum; may be negative")
    answer: Answer = Field("full", description="part of the response that is taken as the answer")
    args: dict[str, Any] = Field({}, description="arguments of the scorer")
    judge: Judge | None = Field(None, description="the model that judges, for scorer = judge")

    @property
    def label(self) -> str:
        """Its name in metrics, e.g. `math`, or `reward` for `my/file.py:reward`."""
        return self.name or self.scorer.rpartition(":")[2]

    @property
    def problem(self) -> str:
        """Of its keys with each other; empty: none."""
        if (self.scorer == "judge") != (self.judge is not None):
            return "scorer = 'judge' and the section judge (its url and model) belong together"
        if self.judge and self.answer != "full":
            return f"answer = {self.answer!r}: a judge reads the whole response; leave answer out"
        return (
            "args: scorer judge has no arguments, its settings are in the section judge"
            if self.judge and self.args
            else ""
        )


class Reward(Section):
    workers: int = Field(1, ge=0, le=MOST_PROCESSES, description="started by `rhymed run`; more can join at any time")
    processes: int = Field(2, gt=0, le=MOST_PROCESSES, description="scoring subprocesses per worker")
    scorer: str = Field(
        "reasoning_gym",
        description="reasoning_gym, math, code, exact, regex, format, length_penalty, judge, environment, none, or"
        " file.py:function",
    )
    answer: Answer = Field("full", description="part of the response that is taken as the answer")
    args: dict[str, Any] = Field({}, description="arguments of the scorer")
    judge: Judge | None = Field(None, description="the model that judges, for scorer = judge")
    scorers: list[Scorer] = Field([], description="several scorers; the reward is their weighted sum")
    timeout_s: float = Field(10.0, gt=0, description="time limit per scorer; then the scoring subprocess is killed")
    memory_gib: float = Field(4.0, ge=0, description="writable memory of a scoring subprocess; 0: no limit")
    file_mib: int = Field(64, ge=0, description="largest file that a scoring subprocess may write; 0: no limit")
    open_files: int = Field(256, ge=32, le=1 << 20, description="files that a scoring subprocess may have open")
    processes_limit: int = Field(
        128,
        ge=2,
        le=1 << 22,
        description="processes and threads of a scoring subprocess, including all that it starts",
    )
    on_error: Literal["drop", "zero", "stop"] = Field(
        "drop", description="what happens to a sample that cannot be scored"
    )

    @field_validator("memory_gib", mode="after")
    @classmethod
    def _loads(cls, memory_gib: float) -> float:
        if 0 < memory_gib < LEAST_GIB:
            raise ValueError(
                f"{memory_gib:g} is less than {LEAST_GIB:g}, which a scoring subprocess needs; 0: no limit"
            )
        return memory_gib

    @property
    def all(self) -> list[Scorer]:
        """At least one."""
        return self.scorers or [Scorer(scorer=self.scorer, answer=self.answer, args=self.args, judge=self.judge)]

    @property
    def judges(self) -> list[Judge]:
        return [scorer.judge for scorer in self.all if scorer.judge]

    @property
    def slots(self) -> int:
        """Samples in the hands of one worker: so many that neither a scoring process nor a judge waits for more."""
        return max(QUEUED * self.processes, *(judge.concurrency for judge in self.judges), 0)

    @property
    def longest_s(self) -> float:
        """In which a worker scores a sample, with all samples before it."""
        caged = len(self.all) - len(self.judges)
        rounds = -(-self.slots // self.processes) if caged else 0
        judged = [-(-self.slots // judge.concurrency) * judge.longest_s for judge in self.judges]
        return rounds * caged * self.timeout_s + max(judged, default=0.0)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        fields = type(self).model_fields  # compared with defaults: a config written by another process sets every key
        single = [
            name for name in ("scorer", "answer", "args", "judge") if getattr(self, name) != fields[name].default
        ]
        if self.scorers and single:
            raise ValueError(
                f"{' and '.join(single)} cannot be combined with scorers: move it into [[reward.scorers]]"
            )
        for number, scorer in enumerate(self.all):
            if scorer.problem:
                raise ValueError(f"{f'scorers[{number}]: ' if self.scorers else ''}{scorer.problem}")
        labels = [scorer.label for scorer in self.all]
        if duplicates := sorted({label for label in labels if labels.count(label) > 1}):
            raise ValueError(f"two scorers are called {duplicates[0]!r}: give each its own name")
        return self
