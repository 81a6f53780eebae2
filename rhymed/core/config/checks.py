"""Settings that contradict each other, each message with both keys. Reads no files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rhymed.core.algorithms import ALGORITHMS
from rhymed.core.config.environment import Environment
from rhymed.core.config.generation import HEADS, Drafts, Rollout
from rhymed.core.config.inputs import Data, Eval, Model
from rhymed.core.config.reward import QUEUED as QUEUED
from rhymed.core.config.reward import Reward
from rhymed.core.config.services import Net, Placement, Schedule, Store
from rhymed.core.config.trainer import Trainer

MOST_OPEN = 1 << 18  # samples; each takes 3.1 KB and 30 microseconds of the broker when its step opens


def step_size(rollout: Rollout, trainer: Trainer, data: Data) -> Iterator[str]:
    samples = rollout.prompts_per_step * rollout.group_size
    if samples % trainer.minibatches:
        yield (
            f"trainer.minibatches = {trainer.minibatches} does not divide the {samples} samples of a step"
            " (rollout.prompts_per_step x rollout.group_size)"
        )
    if data.datasets:
        pass  # together they may be enough
    elif data.source == "reasoning_gym" and data.size < rollout.prompts_per_step:
        yield f"data.size = {data.size} is less than rollout.prompts_per_step = {rollout.prompts_per_step}"
    elif 0 < data.limit < rollout.prompts_per_step:
        yield f"data.limit = {data.limit} is less than rollout.prompts_per_step = {rollout.prompts_per_step}"
    if trainer.steps is not None and trainer.warmup_steps > trainer.steps:
        yield (
            f"trainer.warmup_steps = {trainer.warmup_steps} is more than trainer.steps = {trainer.steps}:"
            " the learning rate would never be reached"
        )
    if trainer.min_lr_ratio and trainer.schedule == "constant":
        yield (
            f"trainer.min_lr_ratio = {trainer.min_lr_ratio:g} has no effect with trainer.schedule = 'constant': set"
            " linear or cosine, or leave it out"
        )


def open_samples(rollout: Rollout, schedule: Schedule) -> Iterator[str]:
    steps = schedule.max_staleness + schedule.run_ahead + 1
    samples = steps * rollout.prompts_per_step * rollout.group_size
    if samples > MOST_OPEN:
        yield (
            f"schedule.max_staleness = {schedule.max_staleness} opens {steps} steps at once, {samples:,} samples (x"
            f" rollout.prompts_per_step x rollout.group_size): the broker holds at most {MOST_OPEN:,}"
        )


def single_samples(rollout: Rollout, trainer: Trainer) -> Iterator[str]:
    if rollout.group_size > 1 or trainer.engine == "trace" or trainer.steps == 0:
        return
    if trainer.recipe.least_group > 1:
        without = ", ".join(name for name, recipe in ALGORITHMS.items() if recipe.least_group == 1)
        yield (
            f"rollout.group_size = 1 with trainer.algorithm = {trainer.algorithm!r}: it compares the samples of a"
            f" prompt, so each needs at least two; one is enough for {without}"
        )
    if trainer.filters_groups:
        yield (
            "rollout.group_size = 1 with trainer.dynamic_sampling: one sample is a group without signal, so every"
            " group would be dropped"
        )


def engines(rollout: Rollout, trainer: Trainer, drafts: Drafts, schedule: Schedule) -> Iterator[str]:
    if trainer.engine == "trace" and rollout.engine != "trace":
        yield (
            "trainer.engine = 'trace' publishes no model, so rollout.engine must be 'trace' as well:"
            f" {rollout.engine} would have nothing to load"
        )
    if trainer.engine == "trace" and trainer.lora:
        yield "trainer.lora needs a model, and trainer.engine = 'trace' has none: leave [trainer.lora] out"
    if drafts.method != "none" and rollout.sampler == "vllm" and rollout.min_p:
        yield (
            f"rollout.min_p = {rollout.min_p} with drafts needs rollout.sampler = 'keyed':"
            " vLLM's own sampler refuses min_p with drafts"
        )
    if drafts.by_engine and drafts.budget != "rate":
        yield (
            f"drafts.method = {drafts.method!r} needs drafts.budget = 'rate', not {drafts.budget!r}:"
            " no other budget knows what the head is worth"
        )
    if drafts.by_engine:
        yield from _heads(rollout)
    if schedule.run_ahead and (rollout.sampler == "vllm" or drafts.method == "none"):
        yield (
            "schedule.run_ahead needs rollout.sampler = 'keyed' and drafts.method = 'history':"
            " tokens generated ahead are verified as a draft under the same noise"
        )


def _heads(rollout: Rollout) -> Iterator[str]:
    """Of engines whose own head drafts in addition to history."""
    method, found = "drafts.method = 'history+engine'", rollout.engine_args.get("speculative_config")
    for name, needed in (("engine", "vllm"), ("runner", "v2"), ("sampler", "keyed")):
        if (value := getattr(rollout, name)) != needed:
            yield f"{method} needs rollout.{name} = {needed!r}, not {value!r}: heads draft with history only there"
    given: dict[str, Any] = found if isinstance(found, dict) else {}
    named, length = given.get("method"), given.get("num_speculative_tokens")
    if named not in HEADS or type(length) is not int or length < 1:
        yield (
            f"{method} needs rollout.engine_args.speculative_config with a method ({', '.join(HEADS)}) and"
            " num_speculative_tokens, how many tokens the head drafts: name the head, or set 'history'"
        )
    elif named != "mtp" and not given.get("model"):
        yield f"{method}: rollout.engine_args.speculative_config.model, the head's folder or name, is missing"


def kept_tokens(rollout: Rollout, trainer: Trainer) -> Iterator[str]:
    """Where the trainer does not know which tokens the engine kept, its probabilities are among all: each ratio is
    too small by the share that was kept."""
    recipe = trainer.recipe
    if not rollout.untold_cuts or not recipe.rejects or trainer.steps == 0 or trainer.engine == "trace":
        return
    masked = recipe.correction in ("none", "token-tis")
    name = "off_policy_mask" if masked else "correction"
    value = f"{recipe.off_policy_mask:g}" if masked else repr(recipe.correction)
    cure = "set it to 0" if masked else "set trainer.correction = 'none' or 'token-tis'"
    yield (
        f"trainer.{name} = {value} with {rollout.cuts} and {rollout.silent}: the engine draws from the tokens that"
        " are kept, and the trainer's probabilities are of all, so every ratio is too small by the share that was"
        f" kept, and samples are left out for that alone: {cure}, set rollout.sampler = 'keyed', or draw from all"
        " tokens"
    )


def quantization(model: Model, trainer: Trainer) -> Iterator[str]:
    if not model.quantization or trainer.steps == 0:
        return
    name = f"model.quantization = {model.quantization!r}"
    if trainer.engine == "trace":
        yield f"{name} needs a model, and trainer.engine = 'trace' has none: leave it out"
    elif trainer.lora is None:
        yield f"{name}: weights of 4 bits cannot be trained: add [trainer.lora], whose adapters are, or leave it out"
    elif trainer.world > 1:
        yield f"{name} is for one rank, and there are {trainer.world}: ranks divide no weights of 4 bits"


def colocation(rollout: Rollout, schedule: Schedule) -> Iterator[str]:
    if schedule.colocate and rollout.engine == "dataset":
        yield "schedule.colocate has no effect: rollout.engine = 'dataset' uses no GPU; leave it out"
    if rollout.engine_args and rollout.engine != "vllm":
        yield f"rollout.engine_args are vLLM's, and rollout.engine = {rollout.engine!r} takes none of them"


def dynamic_sampling(trainer: Trainer, reward: Reward) -> Iterator[str]:
    metric, labels = trainer.dynamic_sampling.metric, [scorer.label for scorer in reward.all]
    if trainer.filters_groups and metric != "reward" and metric not in labels:
        yield (
            f"trainer.dynamic_sampling.metric = {metric!r} is neither 'reward' nor a scorer:"
            f" there {'are' if len(labels) > 1 else 'is'} {', '.join(labels)}"
        )
    if trainer.filters_groups and trainer.recipe.advantage == "decoupled" and len(labels) > 1:
        yield (
            "trainer.dynamic_sampling compares one number of each sample, and trainer.advantage = 'decoupled' learns"
            f" from each of {', '.join(labels)}: a group with equal sums would be dropped though its parts differ;"
            " set trainer.dynamic_sampling.enabled = false"
        )


def critic(trainer: Trainer) -> Iterator[str]:
    given = trainer.critic
    if (changed := given.changed()) and not trainer.recipe.critic:
        users = " or ".join(name for name, recipe in ALGORITHMS.items() if recipe.critic)
        yield (
            f"trainer.critic.{changed[0]} has no effect: trainer.algorithm = {trainer.algorithm!r} has no critic; set"
            f" trainer.algorithm = {users}, or leave [trainer.critic] out"
        )
    if trainer.recipe.critic and trainer.steps and given.warmup_steps >= trainer.steps:
        yield (
            f"trainer.critic.warmup_steps = {given.warmup_steps} leaves no step of trainer.steps = {trainer.steps} in"
            " which the policy is trained"
        )


def signal(trainer: Trainer, reward: Reward) -> Iterator[str]:
    """A run without training steps may have any settings of a loss."""
    recipe, name = trainer.recipe, f"trainer.algorithm = {trainer.algorithm!r}"
    if trainer.steps == 0:
        return
    if (recipe.loss == "likelihood") != (trainer.algorithm == "sft"):
        yield "trainer.loss = 'likelihood' belongs to trainer.algorithm = 'sft', and to no other"
    elif recipe.advantage == "none" and trainer.algorithm != "sft" and not trainer.teacher.used:
        yield f"{name} with trainer.advantage = 'none' and without a trainer.teacher has nothing to learn from"
    elif recipe.advantage == "none" and recipe.old_first:
        yield f"trainer.kl_in = 'reward' has no effect: {name} does not learn from rewards; set it to 'loss'"
    if recipe.advantage == "decoupled" and recipe.old_first:
        yield "trainer.advantage = 'decoupled' normalises each scorer's rewards by itself: set trainer.kl_in = 'loss'"
    if recipe.advantage != "none" and all(one.scorer == "none" for one in reward.all):
        yield f"reward.scorer = 'none' gives every response 0, and {name} learns from rewards: name a scorer"


def overlap(trainer: Trainer, schedule: Schedule) -> Iterator[str]:
    shared = ["with schedule.colocate the trainer has no GPU while engines generate"] if schedule.colocate else []
    reasons = [*trainer.whole_step, *shared]
    if trainer.overlap:
        yield from (f"trainer.overlap computes groups one by one, and {why}: set it to false" for why in reasons)


def distillation(rollout: Rollout, trainer: Trainer) -> Iterator[str]:
    teacher, algorithm = trainer.teacher, trainer.algorithm
    if algorithm == "opd" and not teacher.named:
        yield (
            "trainer.algorithm = 'opd' needs a teacher: set trainer.teacher.model or trainer.teacher.url; with the"
            " policy as its own teacher the algorithm is 'opsd'"
        )
    if algorithm == "opsd" and teacher.named:
        yield "trainer.algorithm = 'opsd' has the policy as its teacher: for trainer.teacher.model or url use 'opd'"
    if algorithm == "opsd" and not teacher.shows:
        yield (
            "trainer.algorithm = 'opsd' needs what only the teacher is shown: set trainer.teacher.demonstration (a"
            " column) or trainer.teacher.system"
        )
    if not teacher.used:
        return
    if algorithm == "sft" or trainer.engine == "trace":
        why = "trainer.algorithm = 'sft' learns from answers" if algorithm == "sft" else "trainer.engine is 'trace'"
        yield f"trainer.teacher has no effect: {why}"
    if teacher.url and rollout.temperature != 1:
        yield (
            f"trainer.teacher.url: a server gives log-probs at temperature 1 only, and rollout.temperature ="
            f" {rollout.temperature:g}: set it to 1, or name the teacher by trainer.teacher.model"
        )
    moves = teacher.tokens == "vocabulary" and teacher.weights == "step" and not teacher.named
    if moves and trainer.minibatches > 1:
        yield (
            "trainer.teacher.over = 'vocabulary' with the policy as its own teacher needs trainer.minibatches = 1, or"
            " trainer.teacher.weights = 'initial': it would change within the step"
        )


def answers(rollout: Rollout, trainer: Trainer, data: Data, settings: Eval) -> Iterator[str]:
    """`sft` trains on the rows' own answers, and only `sft` does."""
    dataset = rollout.engine == "dataset"
    if trainer.algorithm == "sft" and not dataset:
        yield "trainer.algorithm = 'sft' trains on the rows' answers: set rollout.engine = 'dataset'"
    if dataset and trainer.algorithm != "sft":
        yield (
            f"rollout.engine = 'dataset' gives answers that no policy wrote, and trainer.algorithm ="
            f" {trainer.algorithm!r} learns from the policy's own: use 'sft', or another engine"
        )
    if data.answer_column and not dataset:
        yield "data.answer_column has no effect: it is for rollout.engine = 'dataset'"
    if not dataset:
        return
    if rollout.group_size > 1:
        yield f"rollout.group_size = {rollout.group_size}: a row has one answer: set it to 1"
    if rollout.temperature != 1:
        yield f"rollout.temperature = {rollout.temperature:g}: nothing is sampled with rollout.engine = 'dataset'"
    if settings.every:
        yield (
            f"eval.every = {settings.every}: rollout.engine = 'dataset' generates nothing; evaluate the checkpoints"
            " with `rhymed eval`"
        )


def evaluation(settings: Eval, trainer: Trainer) -> Iterator[str]:
    if trainer.keep_best and not settings.every:
        yield "trainer.keep_best compares held-out rewards: set eval.every and [[eval.datasets]]"
    if settings.every and not settings.datasets:
        yield f"eval.every = {settings.every} needs at least one of [[eval.datasets]]"
    names = [dataset.name for dataset in settings.datasets]
    if len(set(names)) < len(names):
        yield f"eval.datasets: two have the same name ({', '.join(names)})"
    if settings.samples > 1 and settings.temperature == 0:
        yield (
            f"eval.samples = {settings.samples} with eval.temperature = 0: greedy responses are all the same;"
            " set samples = 1 or a temperature"
        )


def placement(rollout: Rollout, schedule: Schedule, store: Store, placement: Placement) -> Iterator[str]:
    most = placement.max
    if most and not placement.min <= rollout.workers <= most:
        yield (
            f"rollout.workers = {rollout.workers}, with which a run starts, is not between placement.min ="
            f" {placement.min} and placement.max = {most}"
        )
    if placement.engine == "ray" and schedule.colocate:
        yield (
            "schedule.colocate shares GPUs between engines and trainer on one machine, and placement.engine = 'ray'"
            " gives each process its own: leave one of them out"
        )


def environments(environment: Environment, rollout: Rollout, reward: Reward) -> Iterator[str]:
    if environment.active and rollout.engine == "dataset":
        yield "environment: rollout.engine = 'dataset' writes no turns; name another engine, or leave environment out"
    gives = environment.stateful or environment.command
    if not gives and any(scorer.scorer == "environment" for scorer in reward.all):
        yield "reward.scorer = 'environment' needs environment.factory, url or command, which give it: name another"


def deadlines(schedule: Schedule, environment: Environment) -> Iterator[str]:
    if schedule.lost_after_s <= 2 * schedule.heartbeat_s:
        yield "schedule.lost_after_s must be more than twice schedule.heartbeat_s"
    acting_s = QUEUED * environment.timeout_s
    if (
        environment.command or environment.url or environment.mcp
    ) and environment.timeout_s >= schedule.stuck_after_s:
        yield (
            f"schedule.stuck_after_s = {schedule.stuck_after_s:g} must be more than environment.timeout_s ="
            f" {environment.timeout_s:g}, for which a program, or a server of environment.url or mcp, may work"
        )
    if (environment.tools or environment.factory) and acting_s >= schedule.stuck_after_s:
        yield (
            f"schedule.stuck_after_s = {schedule.stuck_after_s:g} must be more than {acting_s:g}: {QUEUED} samples"
            f" wait for each thread of an environment's subprocesses, for environment.timeout_s ="
            f" {environment.timeout_s:g} each"
        )


def addresses(net: Net) -> Iterator[str]:
    chosen = [address for address in (net.broker, net.store, net.weights, net.ranks) if address]
    if len(set(chosen)) < len(chosen):
        yield "net.broker, net.store, net.weights and net.ranks must be different addresses"


def ranks(trainer: Trainer, net: Net, placement: Placement) -> Iterator[str]:
    cpu = trainer.device == "cpu"
    if trainer.ranks > 1 and not cpu:
        yield (
            f"trainer.ranks = {trainer.ranks} is for trainer.device = 'cpu': set that, or trainer.gpus ="
            f" {trainer.ranks} for a rank on each of {trainer.ranks} GPUs"
        )
    if trainer.gpus > 1 and cpu:
        yield f"trainer.gpus = {trainer.gpus} with trainer.device = 'cpu': set trainer.ranks = {trainer.gpus} instead"
    if net.ranks and trainer.nodes == 1:
        yield "net.ranks has no effect with trainer.nodes = 1: leave it out"
    if trainer.nodes > 1 and not net.ranks and placement.engine != "ray":
        yield (
            f"trainer.nodes = {trainer.nodes} needs net.ranks: the address of the trainer's node at which the ranks"
            " meet, e.g. tcp://10.0.0.1:5553"
        )
    if trainer.world > 1:
        yield from (f"{why}: train it with one rank" for why in _not_sharded(trainer))


def _not_sharded(trainer: Trainer) -> Iterator[str]:
    shared = f"{trainer.world} ranks share the weights"
    if trainer.engine == "trace":
        yield f"trainer.engine = 'trace' has no weights to share, and {shared}"
    if trainer.optimizer != "adamw":
        yield f"trainer.optimizer = {trainer.optimizer!r}: {shared}, and only 'adamw' knows parts of tensors"
