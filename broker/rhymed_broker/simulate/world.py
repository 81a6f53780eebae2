"""The world around the ledger: emulated workers and a trainer, in virtual time.

The ledger is the broker's, driven by the same events; nothing here decides what runs where.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from typing import Any

from rhymed.core.messages import NO_SIGNAL, Heartbeat, Holding, Join, LengthRow, SampleId, SampleInfo, Score
from rhymed.core.steps import window
from rhymed_broker.forecast import Forecast, Lengths
from rhymed_broker.ledger import actions
from rhymed_broker.ledger.actions import Begin, Train
from rhymed_broker.ledger.ledger import Ledger, SignalRule
from rhymed_broker.scheduler import Policy
from rhymed_broker.simulate.cluster import Cluster, Totals
from rhymed_broker.simulate.engine import PLAIN, Engine, Entry
from rhymed_broker.simulate.workload import Workload


class World:
    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        policy: Policy,
        *,
        max_staleness: int = 0,
        run_ahead: int = 0,
        forecast: Lengths | None = None,
        ledger: type[Ledger] = Ledger,
    ) -> None:
        signal = SignalRule(9 * workload.plan.prompts_per_step) if cluster.flat else None
        rules, forecast = cluster.rules(max_staleness, run_ahead), forecast or Forecast(workload.cap)
        self.ledger = ledger(rules, policy, forecast, signal)
        self.workload, self.cluster = workload, cluster
        self.engines: dict[str, Engine] = {}
        self._versions: dict[str, int] = {}
        self._ahead: dict[str, dict[SampleId, int]] = {}  # worker -> parked -> tokens
        self._partials: dict[SampleId, tuple[int, int]] = {}  # (version, tokens) of the beginnings in the store
        self._first: dict[str, int] = {}  # prompt -> its first step
        self._ahead_counts: dict[SampleId, tuple[int, int]] = {}  # ahead, kept
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned: dict[str, float] = {}  # worker -> when its next sample finishes
        self._touched: set[str] = set()
        self._random, self._trainer = random.Random(cluster.seed), Trainer(workload, self._open, cluster.train_s)
        self._over = False
        self.now = 0.0
        self.totals = Totals()

    def run(self) -> Totals:
        """Until all steps of the plan are trained."""
        ledger, cluster = self.ledger, self.cluster
        self._join("trainer", "trainer", 1)
        ledger.start(self.workload.plan, 0, (), self.now)
        self._join("reward", "reward", 1 << 30)
        for number in range(cluster.workers):
            self._start(number)
        for at, number in cluster.failures.items():
            self._at(at, self._die, number)
        self._at(cluster.beat_s, self._beat)
        self._act()
        while self._events and not self._over:
            self.now, _, what, arguments = heapq.heappop(self._events)
            what(*arguments)
            if not self._events or self._events[0][0] > self.now + 1e-9:
                self._act()
        if not self._over:
            raise RuntimeError(f"the simulation stands still at {self.now:.0f} s: {ledger.samples.depths()}")
        return self._total()

    def _open(self, step: int) -> list[SampleId]:
        return list(self.ledger.samples.open_steps[step].samples)

    def _join(self, name: str, role: Any, slots: int) -> None:
        version = 0 if role != "reward" else -1
        self.ledger.join(Join(role=role, worker=name, host="", pid=0, slots=slots, version=version), self.now)

    def _start(self, number: int) -> None:
        name, cluster = f"w{number:04d}", self.cluster
        engine = self.engines[name] = Engine(
            cluster.slots, cluster.cost, cluster.slow.get(number, 1.0), cluster.drafts or PLAIN
        )
        engine.advance(self.now)
        self._versions[name], self._ahead[name] = self.ledger.version, {}
        join = Join(role="rollout", worker=name, host="", pid=0, slots=cluster.slots, version=self.ledger.version)
        self.ledger.join(join, self.now)

    def _die(self, number: int) -> None:
        name = f"w{number:04d}"
        if name in self.engines:
            del self.engines[name], self._versions[name], self._ahead[name]
            self._at(self.now + self.cluster.back_s, self._start, number)

    def _beat(self) -> None:
        ledger = self.ledger
        for name, engine in self.engines.items():
            if name in ledger.workers.by_name:
                engine.advance(self.now)
                ahead = self._ahead[name]
                holding = [Holding(id=id, tokens=engine.tokens(entry)) for id, entry in engine.running.items()]
                holding += [Holding(id=entry.id, tokens=entry.begun) for entry in engine.waiting]
                holding += [Holding(id=id, tokens=tokens, parked=True) for id, tokens in ahead.items()]
                ledger.heartbeat(Heartbeat(worker=name, version=self._versions[name], holding=holding), self.now)
        for name in ("reward", "trainer"):
            ledger.heard(name, self.now)
        ledger.tick(self.now)
        self._at(self.now + self.cluster.beat_s, self._beat)

    def _leave(self, name: str) -> None:
        engine = self.engines.get(name)
        if engine is None:
            return
        self._planned.pop(name, None)
        engine.advance(self.now)
        version, ready, parked = self._versions[name], [], []
        for entry in engine.finished():
            if self._oldest(entry.id) > version:
                self._ahead[name][entry.id] = entry.length
                parked.append(entry.id)
            else:
                ready.append(self._info(entry, version))
        if parked:
            self.ledger.parked(name, parked, self.now)
        if ready:
            self.totals.rollout_s = self.now
            self.ledger.generated(name, ready, self.now)
        self._touched.add(name)

    def _info(self, entry: Entry, version: int) -> SampleInfo:
        self.totals.tokens += entry.length
        versions = [(entry.version, entry.length)]
        if entry.version < version:
            versions = [(entry.version, 1), (version, entry.length - 1)]
        return SampleInfo(
            id=entry.id, prompt_length=1, length=entry.length, finish_reason="stop", versions=versions,
            ahead=self._ahead_counts.pop(entry.id, (0, 0)), drafting=self.cluster.drafted(entry),
        )  # fmt: skip

    def _oldest(self, id: SampleId) -> int:
        return window(id.step, self.ledger.rules.max_staleness)[0]

    def _enter(self, name: str, id: SampleId, brought: int = 0, of_version: int = -1) -> None:
        """A sample begins, or continues from tokens of another version, which are verified first."""
        length, version = self.workload.length(id), self._versions[name]
        kept = brought if of_version == version else self.cluster.kept(brought, self._random)
        if of_version < version and brought:
            ahead, before = self._ahead_counts.get(id, (0, 0))
            self._ahead_counts[id] = (ahead + brought, before + kept)
            self.totals.ahead += brought
            self.totals.kept += kept
        seen = self._first.setdefault(id.prompt, id.step) < id.step and self.cluster.drafts is not None
        self.engines[name].add(Entry(id, length, kept, self.cluster.verify * kept, version, seen=seen))

    def _act(self) -> None:
        for action in self.ledger.drain(self.now):
            self._do(action)
        for name in self._touched:
            engine = self.engines.get(name)
            due = engine.next_s() if engine is not None else None
            if due is not None and self._planned.get(name) != due:
                self._planned[name] = due
                self._at(due, self._due, name, due)
        self._touched.clear()

    def _due(self, name: str, due: float) -> None:
        if self._planned.get(name) == due:
            self._leave(name)

    def _do(self, action: actions.Action) -> None:
        match action:
            case actions.Assign(name, ids, begun):
                self._assign(name, ids, set(begun))
            case actions.ScoreSamples(_, ids):
                self._at(self.now + self.cluster.reward_s, self._scored, ids)
            case actions.Load(name, version) if name in self.engines:
                self._load(name, version)
            case actions.Begin():
                self._trainer.begin(self.now, action)
            case actions.Train():
                self._at(self._trainer.train(self.now, action), self._trained, action.step)
            case actions.Release(name, ids) if name in self.engines:
                self._release(name, ids)
            case actions.Cancel(name, ids) if name in self.engines:
                self.engines[name].advance(self.now)
                for id in ids:
                    self.engines[name].remove(id)
                    self._ahead[name].pop(id, None)
                self._touched.add(name)
            case actions.Recall(_, prompts):
                self.ledger.remember({prompt: LengthRow(prompt=prompt, lengths=[]) for prompt in prompts})
            case actions.FinishRun():
                self._over = True
            case actions.Mark(ids, "dropped", reason) if reason.startswith(NO_SIGNAL):
                self.totals.filtered += len(ids)
            case actions.Mark(ids, "dropped"):
                self.totals.dropped += len(ids)

    def _assign(self, name: str, ids: list[SampleId], begun: set[SampleId]) -> None:
        if name not in self.engines:
            return  # it is dead, and the ledger does not know yet
        engine = self.engines[name]
        engine.advance(self.now)
        for id in ids:
            version, brought = self._partials.pop(id, (0, 0)) if id in begun else (0, 0)
            self._enter(name, id, brought, version)
        self._touched.add(name)

    def _load(self, name: str, version: int) -> None:
        """Tokens written ahead are verified with the new weights; everything else continues with them."""
        engine, before = self.engines[name], self._versions[name]
        engine.advance(self.now)
        engine.pause(self.now + self.cluster.load_s)
        self._versions[name] = version
        again = [(id, tokens) for id, tokens in self._ahead[name].items() if self._oldest(id) <= version]
        for entry in [*engine.running.values(), *engine.waiting]:
            if self._oldest(entry.id) > before:
                again.append((entry.id, engine.tokens(entry)))
        for id, tokens in sorted(again):
            self._ahead[name].pop(id, None)
            engine.remove(id)
            self._enter(name, id, tokens, before)
        self._at(self.now + self.cluster.load_s, self._loaded, name, version)

    def _loaded(self, name: str, version: int) -> None:
        if name in self.engines and name in self.ledger.workers.by_name:
            self.ledger.loaded(name, version, self.now)
            self._touched.add(name)

    def _release(self, name: str, ids: list[SampleId]) -> None:
        engine = self.engines[name]
        engine.advance(self.now)
        for id in ids:
            if entry := engine.remove(id):
                self._partials[id] = (self._versions[name], engine.tokens(entry))
                self.ledger.given_back(name, [id], "moved", self.now, moved=True)
                self.totals.moved += 1
        self._touched.add(name)

    def _scored(self, ids: list[SampleId]) -> None:
        self.ledger.scored("reward", [Score(id=id, reward=self.cluster.reward(id)) for id in ids], self.now)

    def _trained(self, step: int) -> None:
        if self.ledger.train_done(step, self.now) is not None:
            self.totals.step_s.append(self.now)

    def _at(self, time: float, what: Callable[..., None], *arguments: Any) -> None:
        self.totals.events += 1
        heapq.heappush(self._events, (time, self.totals.events, what, arguments))

    def _total(self) -> Totals:
        engines, totals = self.engines.values(), self.totals
        totals.makespan_s = self.now
        totals.slot_s = sum(engine.slots for engine in engines) * totals.rollout_s
        totals.busy_s = sum(engine.busy_s for engine in engines)
        return totals


# The trainer in virtual time computes one group after another, each in proportion to its tokens.


class Trainer:
    """`step_s`: seconds that a whole step takes."""

    def __init__(self, workload: Workload, samples: Callable[[int], Iterable[SampleId]], step_s: float) -> None:
        self._workload, self._samples, self._step_s = workload, samples, step_s
        self._free_at = 0.0
        self._step, self._done, self._total = -1, 0, 1  # tokens of this step: begun with, of all its samples

    def begin(self, now: float, order: Begin) -> None:
        """These samples, while others of the step are still generated."""
        if order.step != self._step:
            self._step, self._done = order.step, 0
            self._total = self._tokens(self._samples(order.step))
        tokens = self._tokens(order.ids)
        self._done += tokens
        self._free_at = max(self._free_at, now) + self._step_s * tokens / self._total

    def train(self, now: float, order: Train) -> float:
        """All samples of the step. Returns when it is trained."""
        left = 1.0 if order.step != self._step else max(0.0, 1 - self._done / self._tokens(order.ids))
        self._free_at = max(self._free_at, now) + self._step_s * left
        return self._free_at

    def _tokens(self, ids: Iterable[SampleId]) -> int:
        return sum(map(self._workload.length, ids))
