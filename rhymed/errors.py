"""Every error that rhymed raises on purpose.

    RhymedError
    ├── ConfigError            the user's configuration
    ├── DataError              the user's dataset, or one of its rows
    ├── WireError
    │   ├── DeadlineExceeded   a peer did not answer in time: names the peer and the phase
    │   ├── PeerGone           the peer is not connected (any more)
    │   ├── Overloaded         our own send queue is full: back-pressure, try later
    │   ├── MalformedMessage   the peer sent what the protocol does not know: its fault
    │   ├── AddressRefused     an address that cannot be bound, or must not be
    │   ├── NotAllowed         the peer's key is not one that may ask this
    │   └── RemoteFailure      the peer answered with an error of its own
    ├── StoreError
    │   ├── StoreFull          the map has no room: back-pressure, nothing is lost
    │   ├── StoreDamaged       bytes at rest that are not what was written
    │   ├── UnknownSample      a reference to what the store never acknowledged
    │   ├── RunMismatch        the folder belongs to another run
    │   └── Unusable           the open database cannot go on; opened again it can
    ├── SteeringError          a person asked a run for what it cannot do, e.g. to drain a worker that is not there
    ├── InvalidTransition      the ledger was asked for a step that its table does not have: our fault
    ├── EngineError            the inference engine failed or died
    ├── RewardError            a scorer could not be loaded, or answered nonsense
    │   └── ScorerKilled       a signal ended its process while it was loaded: maybe nobody's mistake
    └── TrainerError
        ├── StalenessBroken    a sample older than the contract allows: refused
        ├── StepRefused        the trainer does not take a step, and nothing changes that
        └── CheckpointError    a checkpoint that cannot be read or written
            └── CheckpointLost     none is left of what only a checkpoint has

All of them carry their text as the only argument, so they survive pickling between a worker and its subprocesses.
"""

from __future__ import annotations


class RhymedError(Exception):
    """Base of all; `str(error)` is a sentence for the user."""


class ConfigError(RhymedError):
    pass


class DataError(RhymedError):
    pass


class WireError(RhymedError):
    pass


class DeadlineExceeded(WireError):
    pass


class PeerGone(WireError):
    pass


class Overloaded(WireError):
    pass


class MalformedMessage(WireError):
    pass


class AddressRefused(WireError):
    pass


class NotAllowed(WireError):
    pass


class RemoteFailure(WireError):
    pass


class StoreError(RhymedError):
    pass


class StoreFull(StoreError):
    pass


class StoreDamaged(StoreError):
    pass


class UnknownSample(StoreError):
    pass


class RunMismatch(StoreError):
    pass


class Unusable(StoreError):
    pass


class SteeringError(RhymedError):
    pass


class InvalidTransition(RhymedError):
    pass


class EngineError(RhymedError):
    pass


class RewardError(RhymedError):
    pass


class ScorerKilled(RewardError):
    pass


class TrainerError(RhymedError):
    pass


class StalenessBroken(TrainerError):
    pass


class StepRefused(TrainerError):
    pass


class CheckpointError(TrainerError):
    pass


class CheckpointLost(CheckpointError):
    pass


HOPELESS = (ConfigError, DataError, RewardError, RunMismatch, StoreDamaged, StoreFull, StepRefused, CheckpointLost)
"""What ends a process in the same way again however often it is started: a person has to change something."""


def by_name(name: str) -> type[RhymedError]:
    """The class that a peer named in its failure; a name of another version becomes `RemoteFailure`."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, RhymedError) else RemoteFailure
