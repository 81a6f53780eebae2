"""Makes the teacher that the configuration names. Blocking: loads a model, or asks a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rhymed.config import Config
from rhymed.inputs.supervision.demonstrations import load_teacher_renderer
from rhymed_workers.trainer.policy.policy import Policy
from rhymed_workers.trainer.teacher import start
from rhymed_workers.trainer.teacher.distillation import Distillation
from rhymed_workers.trainer.teacher.prompts import TeacherPrompts
from rhymed_workers.trainer.teacher.remote import RemoteTeacher


def build(config: Config, policy: Policy, load: Callable[[Path], Policy]) -> Distillation | None:
    """None: the configuration names no teacher. `policy`: the one that is trained, its own teacher in `opsd`; `load`:
    another one as it is loaded.

    Raises `ConfigError` for a teacher that is missing or does not fit, `TrainerError` for a server that fails.
    """
    settings = config.trainer.teacher
    if not settings.used:
        return None
    found = start.find(config, settings.patience_s)
    prompts = TeacherPrompts(load_teacher_renderer(config) if settings.shows else None)
    teacher: Policy | RemoteTeacher
    if found.server is not None:
        teacher = RemoteTeacher(settings, found.server.name)
    elif settings.named or settings.weights == "initial":
        assert found.folder is not None, "a local teacher has a folder"
        teacher = load(found.folder).requires_grad_(False)
    else:
        teacher = policy
    return Distillation(settings, prompts, teacher, config.trainer.micro_tokens)
