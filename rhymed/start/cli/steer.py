"""`rhymed steer` pauses and resumes a run, drains and undrains a worker; `rhymed scale` says how many there are."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rhymed.core.errors import ConfigError, SteeringError
from rhymed.core.output import show
from rhymed.core.text import quoted
from rhymed.start.cli.options import add_examples, add_run, add_where

if TYPE_CHECKING:
    from rhymed.core.wire.keys import Keyring, KeyRole

DEADLINE_S = 10.0
ACTS = {
    "pause": "paused: workers finish what they hold, nothing new is started",
    "resume": "the run continues",
    "drain": "{} is drained: it gets no new samples",
    "undrain": "{} gets work again",
}
"""Act -> what it has done to the run, or to a worker."""


class Where(NamedTuple):
    address: str
    keys: Keyring
    folder: Path | None  # the run's folder if it is on this machine, and no link: `latest` may soon be another run


def add_steer(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle_steer)
    add_examples(
        parser,
        "rhymed steer pause                # running samples finish, none starts",
        "rhymed steer resume",
        "rhymed steer drain rollout-1      # its samples move to other workers",
        "rhymed steer undrain rollout-1",
    )
    parser.add_argument("act", choices=ACTS, metavar="ACT", help=f"one of {', '.join(ACTS)}")
    parser.add_argument("workers", nargs="*", metavar="WORKER", help="drain, undrain: names as in `rhymed queues`")
    add_where(parser, positional=False)


def where_of(arguments: argparse.Namespace, role: KeyRole) -> Where:
    """`role`: the key to use. Raises `ConfigError` if the operator's key is needed and missing."""
    from rhymed.core.run.folder import layout_of_folder
    from rhymed.core.wire.keys import Keyring, secret_name

    if arguments.broker:
        address, keys, folder = arguments.broker, Keyring("viewer", arguments.keys, arguments.insecure), None
    else:
        where = layout_of_folder(arguments.run)
        address, keys, folder = where.broker, where.keys("viewer"), arguments.run.resolve()
    here = keys.folder is None or (keys.folder / secret_name("operator")).exists()
    if role == "operator" and not here:
        raise ConfigError(
            f"steering needs the run's {secret_name('operator')}, and {keys.folder} does not contain it: copy it"
            " from the folder where the keys were made"
        )
    return Where(address, Keyring(role, keys.folder, keys.insecure), folder)


def handle_steer(arguments: argparse.Namespace) -> int:
    import asyncio

    names, act = arguments.workers, arguments.act
    if act in ("drain", "undrain") and not names:
        raise ConfigError(f"rhymed steer {act} needs the name of a worker; `rhymed queues` lists them")
    if act in ("pause", "resume") and names:
        raise ConfigError(f"rhymed steer {act} is for the whole run, which --run names: leave out {names[0]}")
    return asyncio.run(_steer(where_of(arguments, "operator"), act, names))


async def _steer(where: Where, act: str, names: list[str]) -> int:
    from rhymed.core.messages import Drain, Pause
    from rhymed.core.run.client import ask_or_explain
    from rhymed.core.wire.sockets import Client

    orders: dict[str, Pause | Drain] = {name: Drain(worker=name, drained=act == "drain") for name in names}
    orders = orders or {"": Pause(paused=act == "pause")}
    client = Client(where.address, peer="broker", keys=where.keys)
    try:
        await ask_or_explain(client)  # its errors say what to do if there is no answer
        for name, order in orders.items():
            try:
                await client.request(order, deadline_s=DEADLINE_S, phase=act)
            except SteeringError as error:
                raise ConfigError(str(error)) from None
            show(ACTS[act].format(name))
        return 0
    finally:
        client.close()


# `rhymed scale`: more or fewer workers of a living run.


def add_scale(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(handler=handle_scale)
    add_examples(
        parser,
        "rhymed scale rollout=12           # starts more, or sends the last ones away",
        "rhymed scale rollout=4 reward=2 --run runs/quickstart",
    )
    parser.set_defaults(listed="wanted")
    parser.add_argument("wanted", nargs="+", metavar="ROLE=N", help="rollout=N, environment=N or reward=N")
    add_run(parser, positional=False)


def handle_scale(arguments: argparse.Namespace) -> int:
    from rhymed.core.config.load import load_run
    from rhymed.core.run import folder as runs
    from rhymed.start.launch import scaling

    folder: Path = arguments.run
    if not (folder / "config.json").exists():
        raise ConfigError(f"{folder} is no run's folder: name it with --run{runs.near(folder)}")
    wanted = scaling.parse(arguments.wanted, load_run(folder))
    if runs.holder(folder) is None:
        raise ConfigError(
            f"{folder} is supervised by no `rhymed run`: start it with `rhymed run --resume {quoted(folder)}`;"
            " end workers by hand if they were started by hand"
        )
    scaling.ask(folder, wanted)
    for role, number in wanted.items():
        show(f"{role}: {number} wanted; `rhymed queues` lists those that have joined")
    return 0
