"""How responses are scored: `[reward]`, its scorers, and judges.

A run has one scorer or several. A judge is a scorer that is a model on a server.
"""

from __future__ import annotations

import re
from typing import Any, Literal, Self, TypeAlias
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from rhymed.core.config.base import MOST_PROCESSES, NAME_LENGTH, ProcessGib, Section

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
    call: Literal["auto", "sample", "group"] = Field(
        "auto",
        description="what a function gets in one call: one sample, or all samples of a prompt in a step; auto: the"
        " group, if its parameters are lists",
    )
    timeout_s: float = Field(
        10.0,
        gt=0,
        description="time limit per scorer and sample, for a group the sum; then the scoring subprocess is killed",
    )
    memory_gib: ProcessGib = Field(4.0, ge=0, description="writable memory of a scoring subprocess; 0: no limit")
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

    def longest_s(self, group: int) -> float:
        """In which a worker scores a sample with all samples before it, if every call takes until its limit.

        `group`: samples of a prompt, at most. Without the start of processes in place of those that were killed.
        """
        functions = [scorer for scorer in self.all if scorer.judge is None]
        whole = [scorer for scorer in functions if ":" in scorer.scorer and self.call != "sample"]  # or some of them
        together = group if whole else 1
        groups = -(-self.slots // together)  # the last one may exceed the slots
        calls = len(functions) + (2 * len(whole) if self.call == "auto" else 0)
        rounds = -(-groups // self.processes)
        judged = [-(-groups * together // judge.concurrency) * judge.longest_s for judge in self.judges]
        return rounds * together * calls * self.timeout_s + max(judged, default=0.0)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        single = self.changed("scorer", "answer", "args", "judge")
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


# A model on a server that scores responses: a judge, which writes its verdict, or a reward model (a number).

RUBRIC = (
    "Judge how well the response answers the request.\n\n"
    "<request>\n{prompt}\n</request>\n\n<response>\n{response}\n</response>\n\n"
    "Explain your judgement in a few sentences. Then write a last line that is only a number: from 0 for a useless or"
    " wrong response to 10 for a perfect one."
)

WRITTEN = ("rubric", "system", "pattern", "words")
"""Keys that only a judge with `api = "chat"` has."""


def rubric_problem(rubric: str) -> str:
    """Empty: a judge would see what it has to judge."""
    shown = any(name in rubric for name in ("{response}", "{environment_transcript}"))
    return "" if shown else "the rubric must name {response}, or {environment_transcript} for samples in turns"


class Judge(Section):
    """For `reward.scorer = "judge"`. A judge's reward is 0 to 1, that of a reward model is the model's number."""

    url: str = Field(
        pattern=r"^https?://[^\s@/]+[^\s@]*$",
        description="of a server with the OpenAI API, e.g. http://10.0.0.1:8000/v1",
    )
    model: str = Field(min_length=1, description="its name on the server")
    api: Literal["chat", "classify", "pooling", "score"] = Field(
        "chat",
        description="chat: a judge writes (/chat/completions); classify, pooling, score: a reward model on vLLM",
    )
    rubric: str = Field(
        RUBRIC,
        min_length=1,
        description="what a judge is asked; {prompt}, {response}, {ground_truth} and {a column of the row} are filled"
        " in",
    )
    system: str = Field("", description="system message of a judge; empty: none")
    pattern: str = Field(
        "",
        description="a judge's score is in the last match of this expression, in its group if it has one; empty: in"
        " the last line",
    )
    words: dict[str, float] = Field(
        {},
        description="words in place of numbers, each with its reward: { yes = 1.0, no = 0.0 }; upper case is equal",
    )
    range: list[float] = Field(
        [],
        max_length=2,
        description="[least, most] of its numbers, which become 0 to 1; empty: [0, 10] for a judge, and a reward"
        " model's numbers as they are",
    )
    thinking: bool = Field(True, description="false: what a response has before its last </think> is not shown")
    options: dict[str, Any] = Field(
        {"temperature": 0.0}, description="other keys of the request, e.g. max_tokens, seed, chat_template_kwargs"
    )
    key_variable: str = Field(
        "JUDGE_API_KEY",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="environment variable of the reward worker that holds the API key, if the server wants one",
    )
    concurrency: int = Field(32, ge=1, le=4096, description="requests of a reward worker at the same time")
    timeout_s: float = Field(60.0, gt=0, description="time limit of one request")
    patience_s: float = Field(
        120.0, ge=0, description="seconds for which a failed request is repeated before its sample counts as failed"
    )
    cache: int = Field(
        100_000, ge=0, description="rewards that a worker remembers, so that no request is made twice; 0: none"
    )

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Of the numbers that it gives; None: its numbers are rewards."""
        if self.range:
            return self.range[0], self.range[1]
        return (0.0, 10.0) if self.api == "chat" else None

    @property
    def port(self) -> int:
        """Of its server."""
        address = urlsplit(self.url)
        return address.port or (443 if address.scheme == "https" else 80)

    @property
    def longest_s(self) -> float:
        """From the first attempt of a request to the end of its last one."""
        return self.patience_s + self.timeout_s

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.range and not (len(self.range) == 2 and self.range[0] < self.range[1]):
            raise ValueError(f"range = {self.range}: write [least, most], e.g. [0, 10]")
        changed = self.changed(*WRITTEN)
        if self.api != "chat" and changed:
            raise ValueError(f"{changed[0]} is for api = 'chat'; a reward model reads the prompt and the response")
        try:
            _ = self.port
        except ValueError as error:
            raise ValueError(f"url = {self.url!r}: {error}") from None
        if problem := rubric_problem(self.rubric):
            raise ValueError(problem)
        if self.words and self.range:
            raise ValueError("words and range cannot be combined: words have rewards of their own")
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"pattern: {error}") from None
        if reserved := sorted({"model", "messages", "stream", "n"} & self.options.keys()):
            raise ValueError(f"options.{reserved[0]} is set by rhymed: leave it out")
        return self
