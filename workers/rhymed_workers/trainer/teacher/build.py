"""Makes the teacher that the configuration names. Blocking: loads a model, or asks a server."""

from __future__ import annotations

from rhymed.config import Config
from rhymed.inputs.supervision.demonstrations import load_teacher_renderer
from rhymed_workers.trainer.policy.backbone import Compute
from rhymed_workers.trainer.policy.policy import Policy
from rhymed_workers.trainer.ranks.group import ALONE, Alone
from rhymed_workers.trainer.teacher import start
from rhymed_workers.trainer.teacher.distillation import Distillation
from rhymed_workers.trainer.teacher.prompts import TeacherPrompts
from rhymed_workers.trainer.teacher.remote import RemoteTeacher


def build(config: Config, policy: Policy, compute: Compute, ranks: Alone = ALONE) -> Distillation | None:
    """None: the configuration names no teacher. `policy`: the one that is trained, its own teacher in `opsd`. Another
    local one is shared by the ranks as the policy is; a server is asked by the first of them.

    Raises `ConfigError` for a teacher that is missing or does not fit, `TrainerError` for a server that fails.
    """
    settings = config.trainer.teacher
    if not settings.used:
        return None
    asks = ranks.rank == 0 or not settings.url
    found = start.find(config, settings.patience_s) if asks else start.Found()
    prompts = TeacherPrompts(load_teacher_renderer(config) if settings.shows else None)
    teacher: Policy | RemoteTeacher
    if settings.url:
        teacher = RemoteTeacher(settings, found.server.name if found.server else "")
    elif settings.named or settings.weights == "initial":
        assert found.folder is not None, "a local teacher has a folder"
        teacher = Policy.load(found.folder, config.rollout.temperature, compute, ranks.mesh).requires_grad_(False)
    else:
        teacher = policy
    return Distillation(settings, prompts, teacher, config.trainer.micro_tokens, ranks)
