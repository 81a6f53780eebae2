"""Which prompts every step of a run should have trained on: the plan, and what its steps drew from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rhymed.config import Config
from rhymed.errors import ConfigError, RhymedError
from rhymed.messages import Drawn
from rhymed_broker.mixture import mixture_of
from rhymed_broker.plan import Plan
from rhymed_broker.sampler import sampler_of


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
