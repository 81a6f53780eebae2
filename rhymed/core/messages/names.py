"""Names of workers: short, printable, and of one role. Pure."""

from __future__ import annotations

import re
from typing import get_args

from rhymed.core.messages.fields import WORKER
from rhymed.core.messages.samples import Role

LONGEST = 64
ROLES: tuple[Role, ...] = get_args(Role)
_NAME = re.compile(WORKER)


def role_of(name: str) -> Role | None:
    """The role that a name begins with: `rollout-3`, `rollout@host:4711`, `trainer`. None: of no role."""
    return next((role for role in ROLES if name == role or name.startswith((f"{role}-", f"{role}@"))), None)


def wrong_name(role: Role, name: str) -> str:
    """Why a worker of this role cannot have this name, as a sentence; empty: it can."""
    if not _NAME.search(name):
        return (
            f"the name {name[: LONGEST + 1]!r} is not possible: at most {LONGEST} letters and digits of ASCII and"
            " . _ - @ : are, and the first one is a letter or a digit"
        )
    owner = role_of(name)
    if owner not in (None, role):
        return f"the name {name} belongs to a {owner} worker: a {role} worker is called e.g. {role}-0"
    return ""


def default_name(role: Role, host: str, pid: int) -> str:
    """`rollout@host:4711`; of the host's name, what is possible in a worker's."""
    tail = f":{pid}"
    room = LONGEST - len(role) - 1 - len(tail)
    return f"{role}@{re.sub(r'[^A-Za-z0-9._-]', '-', host)[:room]}{tail}"
