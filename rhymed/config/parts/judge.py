"""A model on a server that scores responses: a judge, which writes its verdict, or a reward model (a number)."""

from __future__ import annotations

import re
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from rhymed.config.base import Section

RUBRIC = (
    "Judge how well the response answers the request.\n\n"
    "<request>\n{prompt}\n</request>\n\n<response>\n{response}\n</response>\n\n"
    "Explain your judgement in a few sentences. Then write a last line that is only a number: from 0 for a useless or"
    " wrong response to 10 for a perfect one."
)

WRITTEN = ("rubric", "rubric_file", "system", "read", "field", "pattern", "words")
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
    rubric_file: str = Field("", description="a text file with the rubric, in place of rubric")
    system: str = Field("", description="system message of a judge; empty: none")
    read: Literal["last_line", "json", "regex"] = Field(
        "last_line",
        description="where a judge's score is: in its last line, in a field of its last JSON object, or in the last"
        " match of pattern",
    )
    field: str = Field("score", min_length=1, description="json: name of the field")
    pattern: str = Field("", description="regex: with a group around the score, or without one")
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
        100_000, ge=0, description="answers kept in the run's folder, so that a request is not made twice; 0: none"
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
        changed = [name for name in WRITTEN if getattr(self, name) != type(self).model_fields[name].default]
        if self.api != "chat" and changed:
            raise ValueError(f"{changed[0]} is for api = 'chat'; a reward model reads the prompt and the response")
        if self.rubric_file and "rubric" in changed:
            raise ValueError("rubric and rubric_file cannot be combined: leave one out")
        try:
            _ = self.port
        except ValueError as error:
            raise ValueError(f"url = {self.url!r}: {error}") from None
        if problem := rubric_problem(self.rubric):
            raise ValueError(problem)
        if self.words and self.range:
            raise ValueError("words and range cannot be combined: words have rewards of their own")
        if (self.read == "regex") != bool(self.pattern):
            raise ValueError("read = 'regex' and pattern belong together")
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"pattern: {error}") from None
        if reserved := sorted({"model", "messages", "stream", "n"} & self.options.keys()):
            raise ValueError(f"options.{reserved[0]} is set by rhymed: leave it out")
        return self
