"""All wire types, one module for each receiver. `docs/protocol.md` is generated from these modules.

A message travels as `[envelope, body, *arrays]`: two MessagePack maps and raw frames. The body's `type` names its
struct. Token arrays are little-endian uint32, log-probs float32; the arrays of several samples lie end to end in
one frame, in the order of the map's list, and the lengths in the map cut them apart. Unknown fields are refused.
"""

from __future__ import annotations

from rhymed.messages.base import PROTOCOL, Done, Envelope, Failure, Message, Part
from rhymed.messages.broker import (
    Ahead,
    Checkpointed,
    Drain,
    Generated,
    GetGroup,
    GetQueues,
    GiveBack,
    Heartbeat,
    Join,
    Leave,
    Loaded,
    Pause,
    Scored,
    ToBroker,
    Trained,
)
from rhymed.messages.orders import (
    Cancel,
    Finish,
    Generate,
    LoadVersion,
    RateSamples,
    Release,
    ToReward,
    ToRollout,
    ToTrainer,
    TrainStep,
)
from rhymed.messages.queues import Group, GroupRow, Member, Moment, Queues, StepRow, Welcome, WorkerRow
from rhymed.messages.samples import (
    EVAL,
    Drafting,
    FinishReason,
    Holding,
    JournalEntry,
    Role,
    SampleId,
    SampleInfo,
    SampleState,
    Score,
)
from rhymed.messages.store import (
    ForgetLogprobs,
    GetHistory,
    GetJournal,
    GetLengths,
    GetPartials,
    GetPrompts,
    GetSamples,
    GetStoreStats,
    Journal,
    Kept,
    LengthRow,
    Lengths,
    MarkSamples,
    Missing,
    OpenRun,
    Partials,
    PromptRow,
    Prompts,
    PutPartials,
    PutPrompts,
    PutSamples,
    PutScores,
    Samples,
    StoreStats,
    ToStore,
)
from rhymed.messages.weights import GetManifest, GetWeights, Manifest, ToWeights

Reply = (
    Done
    | Failure
    | Welcome
    | Queues
    | Group
    | Prompts
    | Samples
    | Kept
    | Missing
    | Partials
    | Lengths
    | Journal
    | StoreStats
    | Manifest
)
Anything = ToBroker | ToRollout | ToReward | ToTrainer | ToStore | ToWeights | Reply

__all__ = [
    "EVAL",
    "PROTOCOL",
    "Ahead",
    "Anything",
    "Cancel",
    "Checkpointed",
    "Done",
    "Drafting",
    "Drain",
    "Envelope",
    "Failure",
    "Finish",
    "FinishReason",
    "ForgetLogprobs",
    "Generate",
    "Generated",
    "GetGroup",
    "GetHistory",
    "GetJournal",
    "GetLengths",
    "GetManifest",
    "GetPartials",
    "GetPrompts",
    "GetQueues",
    "GetSamples",
    "GetStoreStats",
    "GetWeights",
    "GiveBack",
    "Group",
    "GroupRow",
    "Heartbeat",
    "Holding",
    "Join",
    "Journal",
    "JournalEntry",
    "Kept",
    "Leave",
    "LengthRow",
    "Lengths",
    "LoadVersion",
    "Loaded",
    "Manifest",
    "MarkSamples",
    "Member",
    "Message",
    "Missing",
    "Moment",
    "OpenRun",
    "Part",
    "Partials",
    "Pause",
    "PromptRow",
    "Prompts",
    "PutPartials",
    "PutPrompts",
    "PutSamples",
    "PutScores",
    "Queues",
    "RateSamples",
    "Release",
    "Reply",
    "Role",
    "SampleId",
    "SampleInfo",
    "SampleState",
    "Samples",
    "Score",
    "Scored",
    "StepRow",
    "StoreStats",
    "ToBroker",
    "ToReward",
    "ToRollout",
    "ToStore",
    "ToTrainer",
    "ToWeights",
    "TrainStep",
    "Trained",
    "Welcome",
    "WorkerRow",
]
