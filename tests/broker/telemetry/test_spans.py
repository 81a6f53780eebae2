"""Lives of samples as spans: told by the ledger itself, read back from OpenTelemetry's exporters."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rhymed.config import Config
from rhymed.messages import Call, SampleId
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.states import Rules
from rhymed_broker.telemetry.ids import is_traced, span_id, trace_id
from rhymed_broker.telemetry.otlp import Exporter, endpoint, readable, sender
from rhymed_broker.telemetry.spans import Recorder, Span
from tests.broker.cluster import Cluster, changed, until
from tests.broker.ledger.stories import SmallPlan, Story, info

EPOCH = 1_000_000_000_000_000_000
IDS = SmallPlan().samples(0)


@pytest.fixture
def spans(story: Story) -> list[Span]:
    """What the story's ledger leaves behind."""
    found: list[Span] = []
    story.ledger.samples.watcher = Recorder("r", found.append, epoch_ns=EPOCH)
    return found


def train(story: Story) -> None:
    """One step of one group, from its opening to its end."""
    story.begin(SmallPlan(steps=1))
    story.join("rollout-0", "rollout", slots=8)
    story.now += 2
    story.generated("rollout-0", *IDS)
    story.join("reward-0", "reward", slots=8)
    story.now += 1
    story.scored("reward-0", *IDS)
    story.now += 3
    story.trained(0)


def test_a_sample_leaves_a_span_for_each_state_below_its_own_below_its_steps(story: Story, spans: list[Span]) -> None:
    train(story)
    root = spans[-1]
    assert (root.name, root.parent) == ("step 0", "")
    assert root.attributes == {
        "rhymed.run": "r",
        "rhymed.step": 0,
        "rhymed.samples": 2,
        "rhymed.dropped": 0,
        "rhymed.trained": 2,
    }
    samples = [span for span in spans if span.name == "sample"]
    assert {span.parent for span in samples} == {root.id}
    assert [span.id for span in samples] == [span_id("r", SampleId(0, "a", index)) for index in range(2)]
    assert {span.trace for span in spans} == {trace_id("r", 0)}
    phases = [span for span in spans if span.parent == samples[0].id]
    assert [span.name for span in phases] == ["waiting", "running", "generated", "scoring", "scored", "training"]
    assert [span.start_ns for span in phases[1:]] == [span.end_ns for span in phases[:-1]]
    assert (phases[0].start_ns, phases[-1].end_ns) == (samples[0].start_ns, samples[0].end_ns)
    running = phases[1]
    assert running.end_ns - running.start_ns == 2_000_000_000
    assert running.start_ns > EPOCH
    assert running.attributes["rhymed.worker"] == "rollout-0"
    assert (running.attributes["rhymed.tokens"], running.attributes["rhymed.version"]) == (10, 0)
    assert phases[3].attributes["rhymed.worker"] == "reward-0"
    assert phases[5].attributes["rhymed.worker"] == "trainer"
    assert isinstance(samples[0].attributes["rhymed.reward"], float)
    assert len({span.id for span in spans}) == len(spans)
    assert not any(span.error for span in spans)


def test_turns_and_calls_are_spans(spans_in_turns: list[Span]) -> None:
    own = [span for span in spans_in_turns if span.attributes.get("rhymed.sample") == str(IDS[0])]
    sample = next(span for span in own if span.name == "sample")
    phases = [span for span in own if span.parent == sample.id]
    names = ["turned", "acting", "waiting", "running", "turned", "acting", "waiting", "running", "turned", "acting"]
    assert [span.name for span in phases][: len(names)] == names
    assert [span.attributes.get("rhymed.turn") for span in phases[: len(names)]] == [
        None, 0, None, 0, None, 1, None, 1, None, 2,
    ]  # fmt: skip
    acting = phases[5]
    assert acting.attributes["rhymed.worker"] == "environment-0"
    first, second = [span for span in own if span.parent == acting.id]
    assert [first.name, second.name] == ["execute_tool divide", "execute_tool add"]
    assert (first.end_ns, first.start_ns, second.start_ns) == (
        acting.end_ns, acting.end_ns - 500_000_000, acting.end_ns - 750_000_000,
    )  # fmt: skip
    assert (first.error, first.attributes["gen_ai.tool.name"]) == ("division by zero", "divide")
    assert len({span.id for span in spans_in_turns}) == len(spans_in_turns)


@pytest.fixture
def spans_in_turns() -> list[Span]:
    """Of two turns, of which the first makes two calls."""
    story, found = Story(Ledger(Rules(environment=True))), list[Span]()
    story.ledger.samples.watcher = Recorder("r", found.append, epoch_ns=EPOCH)
    story.begin(SmallPlan(steps=1))
    story.join("environment-0", "environment", slots=8)
    story.join("rollout-0", "rollout", slots=8)
    calls = [Call(name="add", seconds=0.25), Call(name="divide", seconds=0.5, error="division by zero")]
    for made in ([], calls):
        story.now += 1
        story.ledger.holdings.called("environment-0", IDS, [made, []])
        story.ledger.holdings.answered("environment-0", IDS, story.now)
        story.drain()
        story.now += 1
        story.ledger.holdings.turned("rollout-0", [info(id) for id in IDS], story.now)
        story.drain()
    story.now += 1
    story.generated("environment-0", *IDS)
    story.join("reward-0", "reward", slots=8)
    story.scored("reward-0", *IDS)
    story.trained(0)
    return found


def test_a_lost_worker_and_a_drop_are_errors_of_their_spans(story: Story, spans: list[Span]) -> None:
    story.begin(SmallPlan(steps=1))
    story.join("rollout-0", "rollout", slots=8)
    story.ledger.retries.given_back("rollout-0", [IDS[0]], "it is on fire", story.now, retry=False)
    story.ledger.leave("rollout-0", story.now)
    errors = {span.name: span.error for span in spans}
    assert "it is on fire" in errors["sample"]
    returned = [span for span in spans if span.attributes["rhymed.event"] == "returned"]
    assert len(returned) == 1
    assert "it left" in returned[0].error


def test_a_run_that_is_set_back_tells_of_its_steps_again_under_the_same_ids(story: Story, spans: list[Span]) -> None:
    story.begin(SmallPlan(steps=1))
    story.join("rollout-0", "rollout", slots=8)
    story.ledger.pause()
    story.begin(SmallPlan(steps=1))
    assert not [span for span in spans if not span.parent]
    story.generated("rollout-0", *IDS)
    story.join("reward-0", "reward", slots=8)
    story.scored("reward-0", *IDS)
    story.trained(0)
    assert [span.name for span in spans].count("sample") == 2
    assert [span.name for span in spans].count("step 0") == 1


def test_the_same_samples_are_traced_always_and_more_with_a_higher_ratio() -> None:
    ids = [SampleId(step, f"{step:016x}", index) for step in range(50) for index in range(20)]
    few, more = ({id for id in ids if is_traced("r", id, ratio)} for ratio in (0.1, 0.5))
    assert few < more
    assert 50 < len(few) < 150
    assert 400 < len(more) < 600
    assert all(is_traced("r", id, 1.0) for id in ids)
    assert not any(is_traced("r", id, 0.0) for id in ids)


def test_what_is_not_traced_leaves_only_the_steps_span(story: Story) -> None:
    found: list[Span] = []
    recorder = story.ledger.samples.watcher = Recorder("r", found.append, ratio=0.0)
    train(story)
    assert [span.name for span in found] == ["step 0"]
    assert found[0].attributes["rhymed.samples"] == 2
    assert not recorder._samples
    assert not recorder._steps


def test_open_telemetry_takes_them_as_they_are(story: Story, spans: list[Span]) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    train(story)
    memory = InMemorySpanExporter()
    assert sender(memory)([readable(span, Resource.create({"rhymed.run": "r"})) for span in spans])
    read = memory.get_finished_spans()
    assert [(span.name, span.start_time, span.end_time) for span in read] == [
        (span.name, span.start_ns, span.end_ns) for span in spans
    ]
    assert f"{read[0].context.trace_id:032x}" == trace_id("r", 0)
    assert f"{read[0].parent.span_id:016x}" == spans[0].parent
    assert dict(read[0].attributes) == spans[0].attributes
    assert read[-1].parent is None
    assert read[0].resource.attributes["rhymed.run"] == "r"


def span(number: int) -> Span:
    return Span("x", trace_id("r", 0), f"{number + 1:016x}", "", 1, 2, {})


def wait(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, f"timed out: {what}"
        time.sleep(0.01)


def test_an_address_that_hangs_costs_spans_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("opentelemetry.sdk")
    release, entered = threading.Event(), threading.Event()

    def hang(batch: Sequence[object]) -> bool:
        entered.set()
        return release.wait(60)

    exporter = Exporter(lambda: hang, "r", queue_spans=10, linger_s=0.05)
    exporter.put(span(0))
    wait(entered.is_set, "the thread sends")
    for number in range(1, 31):
        exporter.put(span(number))
    assert exporter.dropped == 20
    exporter.close(0.05)
    release.set()
    exporter.close(30)
    (told,) = [record.message for record in caplog.records]
    assert "too slowly, 20 spans dropped so far" in told


def test_an_address_that_fails_is_told_of_once_and_forgiven(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("opentelemetry.sdk")
    got: list[object] = []
    works = threading.Event()

    def connect() -> Callable[[Sequence[object]], bool]:
        if not works.is_set():
            raise OSError("nobody there")
        return lambda batch: got.extend(batch) or True

    exporter = Exporter(connect, "r", linger_s=0.05)
    for number in range(2):
        exporter.put(span(number))
        wait(lambda wanted=number + 1: exporter.dropped == wanted, "a failure")
    assert "nobody there" in exporter.trouble
    works.set()
    exporter.put(span(5))
    wait(lambda: got, "it works again")
    exporter.close(30)
    assert not exporter.trouble
    assert sum("nobody there" in record.message for record in caplog.records) == 1


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """An OTLP/HTTP address: (address, bodies that came)."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces"
            bodies.append(body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", bodies
        server.shutdown()
        thread.join()


async def test_a_run_sends_the_lives_of_all_its_samples(config: Config, collector: tuple[str, list[bytes]]) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    address, bodies = collector
    async with contextlib.AsyncExitStack() as stack:
        cluster = await Cluster(changed(config, metrics={"traces": address}), stack).open()
        await cluster.everybody()
        await until(lambda: cluster.broker.ledger.version == 3, "three steps")
    requests = [ExportTraceServiceRequest.FromString(body) for body in bodies]
    scopes = [scope for request in requests for part in request.resource_spans for scope in part.scope_spans]
    found = [one for scope in scopes for one in scope.spans]
    names = [one.name for one in found]
    assert names.count("sample") == 24
    assert sorted(name for name in names if name.startswith("step ")) == ["step 0", "step 1", "step 2"]
    assert {one.trace_id.hex() for one in found} == {trace_id("test", step) for step in range(3)}


def test_an_address_may_be_written_with_its_path() -> None:
    for address in ("http://h:4318", "http://h:4318/", "http://h:4318/v1/traces"):
        assert endpoint(address) == "http://h:4318/v1/traces"
