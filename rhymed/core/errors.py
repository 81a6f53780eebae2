"""Every error that rhymed raises deliberately.

    RhymedError
    ├── ConfigError            the user's configuration
    ├── DataError              the user's dataset, or one of its rows
    ├── WireError
    │   ├── DeadlineExceeded   a peer did not answer in time: names the peer and the phase
    │   ├── PeerGone           the peer is not connected (any more)
    │   ├── Overloaded         a queue or a limit is full: back-pressure, try later
    │   ├── MalformedMessage   the peer sent an invalid message: its fault
    │   ├── AddressRefused     an address that cannot be bound, or must not be
    │   ├── NotAllowed         the role of the peer's key may not send this
    │   ├── NameTaken          the name of a worker that another one has: over soon if that one is dead
    │   └── RemoteFailure      the peer answered with an error of its own
    ├── StoreError
    │   ├── StoreFull          the map has no room: back-pressure, nothing is lost
    │   ├── StoreDamaged       stored bytes differ from what was written
    │   ├── UnknownSample      a sample that the store does not have
    │   ├── RunMismatch        the folder belongs to another run
    │   └── Unusable           the open database cannot continue; reopening it helps
    ├── NotOurs                a folder that only this user may write, and another user may, or made
    ├── FilesLost              files of a run that were removed, replaced or moved while it was running
    ├── StorageError           shared storage (run.remote) that cannot be reached, read or written: tried again
    ├── RunFailed              a process of the run failed for good: says which, why, and how to resume
    ├── SteeringError          an operator's command that cannot be carried out, e.g. draining an unknown worker
    ├── InvalidTransition      an event that the ledger's table does not allow: our fault
    ├── EngineError            the inference engine failed or died
    ├── CallRefused            a program asks its session for what cannot be answered: its fault
    ├── RewardError            a scorer cannot be loaded, or returned an invalid reward
    │   ├── ScorerKilled       a signal ended its process while it was loaded: perhaps not the scorer's fault
    │   ├── RowUnsuitable      a row lacks what a scorer needs: no response to it can be scored
    │   └── NotPlayed          a scorer reads environments, and none was played: not known before the run
    ├── EnvironmentFailed      a tool or an environment cannot be loaded, is broken, or has ended its process
    │   ├── EnvironmentUnusable    the user's code cannot be loaded
    │   ├── EnvironmentDown        no process is left and none starts: no sample's fault, and a restart may help
    │   └── EnvironmentLost        its process ended through another sample's doing: it can be made again
    ├── Unstartable            the engine or the model did not start: with the same words twice, it never will
    └── TrainerError
        ├── StalenessBroken    a sample older than the contract allows: refused
        ├── StepRefused        the trainer refuses a step for good
        └── CheckpointError    a checkpoint that cannot be read or written
            ├── CheckpointLost     no checkpoint is left that holds what training needs
            └── DiskFull           a checkpoint has waited for room long enough

Each carries its text as the only argument, so it can be pickled between a worker and its subprocesses.
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


class NameTaken(WireError):
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


class NotOurs(RhymedError):
    pass


class FilesLost(RhymedError):
    pass


class StorageError(RhymedError):
    pass


class RunFailed(RhymedError):
    pass


class SteeringError(RhymedError):
    pass


class InvalidTransition(RhymedError):
    pass


class EngineError(RhymedError):
    pass


class Unstartable(RhymedError):
    pass


class RewardError(RhymedError):
    pass


class ScorerKilled(RewardError):
    pass


class RowUnsuitable(RewardError):
    pass


class NotPlayed(RewardError):
    pass


class EnvironmentFailed(RhymedError):
    pass


class EnvironmentUnusable(EnvironmentFailed):
    pass


class EnvironmentDown(EnvironmentFailed):
    pass


class EnvironmentLost(EnvironmentFailed):
    """`begun`: user code may have run for the request that failed."""

    def __init__(self, text: str, *, begun: bool = True) -> None:
        super().__init__(text)
        self.begun = begun


class CallRefused(RhymedError):
    """`code` and `param` as in OpenAI's errors; `status` of HTTP."""

    def __init__(self, text: str, code: str = "invalid_value", param: str | None = None, status: int = 400) -> None:
        super().__init__(text)
        self.code, self.param, self.status = code, param, status

    def __reduce__(self) -> tuple[type[CallRefused], tuple[str, str, str | None, int]]:
        return CallRefused, (str(self), self.code, self.param, self.status)


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


class DiskFull(CheckpointError):
    pass


HOPELESS = (
    ConfigError,
    DataError,
    RewardError,
    EnvironmentUnusable,
    RunMismatch,
    StoreDamaged,
    StoreFull,
    FilesLost,
    StepRefused,
    CheckpointLost,
    DiskFull,
)
"""A restarted process would fail with these again: the user has to change something."""


def by_name(name: str) -> type[RhymedError]:
    """The class with the name in a peer's failure; `RemoteFailure` for an unknown name."""
    kind = globals().get(name)
    return kind if isinstance(kind, type) and issubclass(kind, RhymedError) else RemoteFailure
