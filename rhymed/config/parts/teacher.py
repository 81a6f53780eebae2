"""The teacher of distillation: a model, a server, or the policy itself with a demonstration in its prompt."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rhymed.config.base import Section

TEMPLATE = (
    "{prompt}\n\nHere is an example of a right response:\n\n{demonstration}\n\n"
    "Now answer with a response of your own."
)

OF_SERVERS = ("served", "key_variable", "concurrency", "timeout_s", "patience_s")
"""Keys that only a teacher with a url has."""


class Teacher(Section):
    """For `trainer.algorithm = "opd"` or "opsd"; with another algorithm, an addition to its advantages."""

    model: str = Field(
        "", description="a local teacher: folder, GGUF file, hub id, or a name that `rhymed model` lists"
    )
    revision: str = Field("", description="hub id: branch, tag or commit; empty: main")
    url: str = Field(
        "",
        pattern=r"^(https?://[^\s@]+)?$",
        description="a teacher on a vLLM server with the OpenAI API, e.g. http://10.0.0.1:8000/v1",
    )
    served: str = Field("", description="url: the model's name on the server; empty: its only one")
    key_variable: str = Field(
        "TEACHER_API_KEY",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="url: environment variable that holds the API key, if the server wants one",
    )
    concurrency: int = Field(16, gt=0, description="url: requests at the same time, one sample each")
    timeout_s: float = Field(120.0, gt=0, description="url: time limit of one request")
    patience_s: float = Field(
        600.0, ge=0, description="url: seconds for which failed requests are repeated before the trainer gives up"
    )
    weights: Literal["step", "initial"] = Field(
        "step", description="opsd: the policy at the start of each step, or the model that training started from"
    )
    demonstration: str = Field("", description="column that the teacher is shown; empty: none")
    template: str = Field(
        TEMPLATE, description="user message of the teacher with a demonstration; {prompt} is that of the policy"
    )
    system: str = Field("", description="system message of the teacher, in place of the policy's; empty: the same")
    divergence: Literal["reverse", "forward", "mixed"] = Field(
        "reverse", description="KL(policy || teacher), KL(teacher || policy), or both against their mixture"
    )
    beta: float = Field(0.5, gt=0, lt=1, description="mixed: the teacher's share of the mixture")
    over: Literal["sampled", "vocabulary", "topk"] | None = Field(
        None,
        description="sampled: policy gradient of the sampled tokens, reverse only; vocabulary: exact, not with url;"
        " topk: the teacher's likeliest tokens, forward with url only; empty: the first of them that is possible",
    )
    topk: int = Field(20, gt=0, description="topk: tokens; vllm serve allows --max-logprobs, 20 by default")
    coef: float = Field(1.0, gt=0, description="weight of the divergence")

    @property
    def named(self) -> bool:
        """A model other than the policy."""
        return bool(self.model or self.url)

    @property
    def shows(self) -> bool:
        """The teacher's prompts are not the policy's."""
        return bool(self.demonstration or self.system)

    @property
    def used(self) -> bool:
        """Whether there is a teacher at all."""
        return self.named or self.shows

    @property
    def tokens(self) -> Literal["sampled", "vocabulary", "topk"]:
        """`over`, decided."""
        if self.over is not None:
            return self.over
        if self.divergence == "reverse":
            return "sampled"
        return "topk" if self.url else "vocabulary"

    @property
    def unused(self) -> list[str]:
        """Keys that were changed and have no effect, each with what it needs."""
        needs = {
            "revision": (bool(self.model), "model"),
            **dict.fromkeys(OF_SERVERS, (bool(self.url), "url")),
            "weights": (not self.named, "the policy as its own teacher (opsd)"),
            "template": (bool(self.demonstration), "demonstration"),
            "beta": (self.divergence == "mixed", "divergence = 'mixed'"),
            "topk": (self.tokens == "topk", "over = 'topk'"),
        }
        found = [(name, need) for name, (met, need) in needs.items() if not met and self._changed(name)]
        others = [name for name in type(self).model_fields if name not in needs and self._changed(name)]
        teacher = "a teacher: model, url, demonstration or system"
        return [
            f"{name} needs {need}" for name, need in found + [(name, teacher) for name in others if not self.used]
        ]

    def _changed(self, name: str) -> bool:
        return bool(getattr(self, name) != type(self).model_fields[name].default)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.model and self.url:
            raise ValueError("model and url name two teachers: leave one out")
        if self.tokens == "sampled" and self.divergence != "reverse":
            raise ValueError(
                f"over = 'sampled' is a policy gradient of the reverse divergence: divergence = {self.divergence!r}"
                " needs the teacher's other tokens (over = 'vocabulary', or 'topk' with url)"
            )
        if self.tokens == "vocabulary" and self.url:
            raise ValueError(
                "over = 'vocabulary' needs all of the teacher's log-probs, which a server does not send: name the"
                " teacher by model, or use over = 'topk' with divergence = 'forward', or 'sampled' with 'reverse'"
            )
        if self.tokens == "topk" and not (self.url and self.divergence == "forward"):
            raise ValueError("over = 'topk' is for url and divergence = 'forward'; elsewhere use 'vocabulary'")
        if "{demonstration}" not in self.template:
            raise ValueError("template must contain {demonstration}, and {prompt} for the policy's user message")
        if unused := self.unused:
            raise ValueError("; ".join(unused))
        return self
