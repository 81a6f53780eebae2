"""Fake runs that the page is tested against, and the small server that answers for them.

Every run is a path of its own on one server (so the page is also tested behind a path); its answers follow
docs/http.md. Cases that are hard to produce with a real run: nothing yet, ten thousand prompts, a lost worker, texts
that try to be markup.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading

from aiohttp import web

from rhymed.core.service.stopwatch import ACTIVITIES, HEX
from rhymed.show.dashboard.auth import HEADERS
from rhymed.show.dashboard.routes import STATIC, TYPES, page

START = 1_790_000_000.0
STEP_S = 20.0
PER_EPOCH = 8
GROUP = 4
HOSTILE = "<script>window.owned = 1</script><img src=x onerror='window.owned = 2'>\u202e\u0000 {{7*7}} &lt;b&gt;"


class FakeRun:
    """One run: `prompts` distinct prompts, each in `asked` epochs; `steps` trained steps."""

    asked = 3
    missing = ""
    ended = "finished"

    def __init__(self, name, steps=20, prompts=24, live=True, text=None, refuses=None, turns=False):
        self.name, self.live, self.text, self.prompts, self.turns = name, live, text, prompts, turns
        self.rows = [step_row(step) for step in range(steps)]
        self.spans, self.events = timeline(steps)
        self.refuses = {**(refuses or {}), "prompts/ffff": "there is no prompt ffff"}
        self.down = False
        self.changed = {}  # fields of its snapshot

    @property
    def step(self):
        return len(self.rows)

    def run(self, query):
        return {
            "name": self.name, "folder": f"/runs/{self.name}", "live": self.live,
            "state": "running" if self.live else self.ended, "step": self.step, "steps": 40, "version": self.step,
            "epochs": 5, "elapsed_s": 400.0, "eta_s": None,
            "group_size": GROUP, "prompts_per_step": 8, "started": START,
            "config": {
                "run": {"name": self.name, "seed": 0}, "rollout": {"engine": "vllm", "temperature": 1.0},
                "eval": {"datasets": [{"name": "test", "task": "sums"}]},
            },
            "versions": {"rhymed": "0.1.0", "python": "3.11.7", "torch": None, "vllm": "0.11"},
            "missing": self.missing,
        }  # fmt: skip

    def news(self, query):
        serial, since = int(query["serial"]), float(query["since"])
        return {
            "over": not self.live, "queues": self.queues(), "timeline": self.timeline(since),
            "steps": self.steps(serial) if serial < self.step else None,
        }  # fmt: skip

    def queues(self):
        if not self.live:
            return None
        workers = [] if not self.rows else [worker_row(name, self.step) for name in ("rollout-0", "reward-0")]
        return {
            "run": self.name, "uptime_s": 100.0, "version": self.step, "step": self.step, "steps": 40,
            "finished": False, "queues": {"waiting": 3, "running": 8, "scored": 5, "trained": 640},
            "oldest_s": {"waiting": 2.0, "running": 12.5}, "workers": workers,
            "open_steps": [open_step(self.step + 1, waiting=8), open_step(self.step, running=8, scored=5, dropped=3)],
            "elapsed_s": 400.0, "eta_s": 403.0,
            "metrics": {}, "val": {}, "lag_ms": 1.2, "troubles": [], "paused": False, **self.changed,
        }  # fmt: skip

    advice = ()

    def rewards(self, query):
        edges, counts = [-0.25, 0.25, 0.75, 1.25], [10, 4, 18]
        rows = [{"epoch": epoch, "edges": edges, "counts": counts, "mean": 0.6, "max": 1.0} for epoch in range(3)]
        return {"epochs": rows if self.rows else []}

    def logs(self, query):
        lines = [
            ("info", "broker", "step 1 trained", ""), ("warning", "reward-0", "a reward timed out", ""),
            ("error", "trainer", "it ends", "Traceback (most recent call last)"),
        ]  # fmt: skip
        order = ["debug", "info", "warning", "error"]
        rows = [
            {"t": "2026-01-31T14:05:09.000Z", "level": level, "process": process, "text": text, "trace": trace}
            for level, process, text, trace in lines
            if order.index(level) >= order.index(query.get("level", "info"))
            and query.get("process", process) == process
            and query.get("query", "") in text
        ]
        names, shown = ["broker", "reward-0", "trainer"], rows if self.rows else []
        return {"processes": names, "total": len(rows), "hidden": 7 * (query["libraries"] == "0"), "lines": shown}

    def responses(self, query):
        """Of eight prompts per request, one response each."""
        start, words = int(query.get("from") or "0", 16), query["query"]
        ids = [f"{number:016x}" for number in range(start, min(start + 8, self.prompts))]
        rows = [
            {
                "id": f"18/{id}/1", "prompt": id, "step": 18, "index": 1, "epoch": 2, "reward": 0.5,
                "length": 42, "text": ["so ", words, " it is"],
            }
            for id in ids
        ]  # fmt: skip
        end = min(start + 8, self.prompts)
        following = f"{end:016x}" if end < self.prompts else None
        place = {"next": following, "before": end, "prompts": self.prompts}
        return {"found": rows, "searched": 96, **place, "missing": ""}

    def steps(self, serial):
        evaluations = [
            {"step": step, "time": START + step * STEP_S, "val/test/acc/mean@4": 0.3 + step / 60, "timing_s/val": 3.0}
            for step in range(0, self.step + 1, 5)
            if step
        ]
        return {
            "serial": self.step,
            "steps": self.rows[serial:],
            "evaluations": evaluations,
            "advice": list(self.advice),
            "epochs": [epoch_row(epoch, self.rows) for epoch in range(math.ceil(self.step / PER_EPOCH))],
        }

    def timeline(self, since):
        return {
            "spans": [span for span in self.spans if span["t"] > since],
            "events": [event for event in self.events if event["t"] > since],
            "activities": HEX,
        }

    def lengths(self, query):
        return {"epochs": [lengths_row(epoch) for epoch in range(math.ceil(self.step / PER_EPOCH))]}

    def store(self, query):
        samples = self.step * 8 * GROUP
        return {"samples": samples, "tokens": samples * 120, "used_bytes": samples * 500, "limit_bytes": 1 << 30}

    def prompt_rows(self):
        return [
            {
                "id": f"{number:016x}",
                "text": self.text or f"What is {number} plus {number * 7 % 11}?",
                "samples": 12, "epochs": 3 * (number % 3 > 0), "kind": "training" if number % 3 else "held-out",
                "reward": round(random.Random(number).random(), 3), "spread": 0.25,
                "length": 40.0 + number % 90,
            }
            for number in range(self.prompts if self.rows else 0)
        ]  # fmt: skip

    def list(self, query):
        found = [row for row in self.prompt_rows() if query.get("query", "").lower() in row["text"].lower()]
        kinds = {kind: sum(row["kind"] == kind for row in self.prompt_rows()) for kind in ("training", "held-out")}
        found = [row for row in found if query.get("kind", row["kind"]) == row["kind"]]
        sort = query.get("sort", "id")
        found.sort(key=lambda row: row[sort], reverse=query.get("order", "asc" if sort == "id" else "desc") == "desc")
        offset, limit = int(query.get("offset", 0)), int(query.get("limit", 50))
        return {"total": len(found), "prompts": found[offset : offset + limit], "kinds": kinds}

    def prompt(self, id):
        row = next(row for row in self.prompt_rows() if row["id"] == id)
        epochs = [
            {
                "epoch": epoch, "name": f"epoch {epoch + 1}", "step": 2 + epoch * PER_EPOCH,
                "samples": [self.sample_row(2 + epoch * PER_EPOCH, id, index) for index in range(GROUP)],
            }
            for epoch in range(self.asked)
        ]  # fmt: skip
        more = {"row": {"answer": "42", "source": "sums"}, "answer": "42"}
        return {"id": id, "text": row["text"], **more, "epochs": epochs, "missing": ""}

    def sample_row(self, step, id, index):
        pieces = self.pieces(step, index)
        return {
            "id": f"{step}/{id}/{index}", "step": step, "index": index, "reward": None if index == 3 else index / 2,
            "length": sum(count for count, _ in SHAPE), "finish_reason": "length" if index == 2 else "stop",
            "parts": {"exact": index / 2, "score/tidy": 0.25} if index < 2 else None,
            "state": "trained", "reason": "", "versions": [[step, 30], [step + 1, 12]],
            "drafted": sum(count for count, drafted in SHAPE if drafted) if step > PER_EPOCH else 0,
            "text": "".join(piece["text"] for piece in pieces)[:300],
            **self.session_of(index),
        }  # fmt: skip

    def session_of(self, index):
        """The runs of a response: each has a run of `SHAPE`'s parts, the second and the fourth its environment's."""
        if not self.turns:
            return {"session": None, "runs": []}
        calls = [
            [{"name": "add", "seconds": 0.004, "error": ""}],
            [{"name": "divide", "seconds": 2.5, "error": HOSTILE}],
        ]
        runs = [
            {
                "turn": at // 2, "environment": bool(at % 2), "tokens": count, "fork": None,
                "calls": calls[at // 2] if at in (0, 2) else [],
            }
            for at, (count, _) in enumerate(SHAPE)
        ]  # fmt: skip
        runs[4]["fork"] = {"row": 0, "shared": 17}
        session = {
            "turns": 3, "rows": 2, "calls": 2, "errors": 1, "earned": 0.5,
            "environment_tokens": SHAPE[1][0] + SHAPE[3][0],
        }  # fmt: skip
        return {"session": session, "runs": runs, "read": "with add and divide"}

    def pieces(self, step, index):
        if self.text:
            return [{"text": self.text, "drafted": True}, {"text": self.text, "drafted": False}]
        if step <= PER_EPOCH:
            return [{"text": "first we add " * 20, "drafted": False}]
        return [
            {"text": "and so " * count, "drafted": drafted} | ({"run": run} if self.turns else {})
            for run, (count, drafted) in enumerate(SHAPE)
        ]

    def sample(self, step, id, index):
        row = self.sample_row(int(step), id, int(index))
        tokens = [{"text": "and so ", "logprob": -0.5 * (n % 2), "version": int(step) + (n > 20)} for n in range(42)]
        return row | {
            "tokens": tokens, "unknown": "" if int(step) > PER_EPOCH else "log-probs were forgotten",
            "prompt": self.text or "What is it?",
            "pieces": self.pieces(int(step), int(index)),
            "missing": "",
        }  # fmt: skip


SHAPE = [(12, False), (9, True), (3, False), (14, True), (4, False)]


DEADLINE_S = 60.0


class Loop:
    """An event loop in a thread; `run` waits for a coroutine of it."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(DEADLINE_S)

    def close(self):
        """Whoever still waits for something, as an answer to a page that is closed, ends with it."""

        async def end():
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

        self.run(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Server:
    """Serves each run that is added, at the address that `add` returns."""

    def __init__(self, loop):
        self.loop, self.runs = loop, {}
        loop.run(self._start())

    def add(self, run):
        self.runs[run.name] = run
        return f"http://127.0.0.1:{self.port}/{run.name}/"

    async def _start(self):
        application = web.Application()
        application.router.add_get("/{run}/{path:.*}", self._serve)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]

    def close(self):
        self.loop.run(self._runner.cleanup())

    async def _serve(self, request):
        run, path = self.runs[request.match_info["run"]], request.match_info["path"]
        if run.down:
            request.transport.abort()
            return web.Response()
        if path == "":
            return web.Response(text=page().text, content_type="text/html", headers=HEADERS)
        if path.startswith("static/"):
            file = STATIC / path.removeprefix("static/")
            return web.FileResponse(file, headers={**HEADERS, "Content-Type": TYPES[file.suffix]})
        if refusal := run.refuses.get(path.removeprefix("api/")):
            return web.json_response({"error": refusal}, status=404, headers=HEADERS)
        return web.json_response(answer(run, path.split("/")[1:], request.query), headers=HEADERS)


def answer(run, path, query):
    match path:
        case ["prompts"]:
            return run.list(query)
        case ["prompts", id]:
            return run.prompt(id)
        case ["samples", step, id, index]:
            return run.sample(step, id, index)
        case [name]:
            return getattr(run, name)(query)


def step_row(step):
    noise = random.Random(step)
    epoch = step // PER_EPOCH
    return {
        "step": step, "time": START + (step + 1) * STEP_S, "training/epoch": float(epoch),
        "reward/mean": 0.2 + 0.5 * (1 - math.exp(-step / 12)) + noise.gauss(0, 0.03),
        "reward/std": 0.4, "reward/flat_groups": 0.25, "reward/error_rate": 0.0, "response_length/clip_ratio": 0.05,
        "response_length/mean": 150 - step + noise.gauss(0, 6), "response_length/max": 400.0,
        "rollout/tokens": 4800.0, "rollout/tokens_per_s": 300 + 120 * epoch + noise.gauss(0, 20),
        "rollout/bubble_ratio": 0.2 / (1 + epoch) + noise.random() / 20, "staleness/mean": 0.0, "staleness/max": 0.0,
        "rollout/spec_accept_length": 1 + 1.6 * min(epoch, 1) + noise.random() / 3,
        "rollout/spec_accept_rate": 0.2 + 0.5 * min(epoch, 1), "rollout/spec_net_speedup": 1 + 0.9 * min(epoch, 1),
        "timing_s/rollout": 14 - 4 * min(epoch, 1), "timing_s/reward": 0.4, "timing_s/train": 4.0 + noise.random(),
        "timing_s/step": 19.0, "actor/loss": noise.gauss(0, 0.02), "mismatch_kl/mean": 0.0008, "actor/kl": None,
        "actor/entropy": 2 - step / 20, "actor/grad_norm": 1 + noise.random(), "actor/pg_clipfrac": 0.01,
        "actor/lr": 1e-6,
    }  # fmt: skip


def epoch_row(epoch, rows):
    own = [row for row in rows if row["training/epoch"] == epoch]
    return {
        "epoch": epoch, "first_step": own[0]["step"], "steps": len(own),
        "reward": sum(row["reward/mean"] for row in own) / len(own), "response_length": 140.0 - 10 * epoch,
        "accept_length": 1.1 + 1.6 * min(epoch, 1), "accept_rate": 0.2 + 0.5 * min(epoch, 1),
        "net_speedup": 1 + 0.9 * min(epoch, 1), "rollout_s": 12.0, "tokens_per_s": 300.0 + 120 * epoch,
    }  # fmt: skip


def lengths_row(epoch):
    noise = random.Random(epoch)
    lengths = [min(399, int(noise.lognormvariate(4.6 - epoch / 10, 0.6))) for _ in range(256)]
    edges = list(range(0, 401, 10))
    counts = [sum(low <= length < low + 10 for length in lengths) for low in edges[:-1]]
    return {"epoch": epoch, "edges": edges, "counts": counts, "mean": sum(lengths) / 256, "max": max(lengths)}


def open_step(step, **states):
    return {"step": step, "states": states, "groups_ready": 1, "groups": 4, "open_s": 42.0, "rows": []}


def worker_row(name, version):
    return {
        "worker": name, "role": name.split("-")[0], "host": "node", "pid": 7, "slots": 16, "version": version,
        "phase": "decode", "silent_s": 0.2, "holding": [], "drained": False,
        "accept_length": 2.345 if name.startswith("rollout") else 0.0,
        "stats": {"rollout/tokens_per_s": 412.0} if name.startswith("rollout") else {},
        "usage": usage(gpus=2) if name.startswith("rollout") else {"cpu": 0.04, "memory": 812 << 20},
    }  # fmt: skip


def usage(gpus):
    """As messages travel: fields that have their default value are left out."""
    device = {"kind": "NVIDIA H200", "memory": 61 << 30, "memory_total": 140 << 30}
    devices = [device | {"index": n, "utilization": 0.87 + n / 10, "celsius": 60.0 + n} for n in range(gpus)]
    return {"cpu": 3.2, "memory": 5 << 29, "processes": 3, "gpus": devices}


def timeline(steps, workers=("rollout-0", "rollout-1", "reward-0", "trainer-0")):
    """rollout-1 is lost at two thirds of the time."""
    spans, events, end = [], [], START + steps * STEP_S
    lost = START + steps * STEP_S * 2 / 3
    for worker in workers if steps else ():
        role = worker.split("-")[0]
        events.append({"t": START, "event": "joined", "worker": worker})
        time, noise = START, random.Random(worker)
        while time < (lost if worker == "rollout-1" else end):
            time += 1.0
            raw = [noise.random() ** 2 * (1 + 3 * (k < 2)) for k in range(len(ACTIVITIES[role]))]
            inside = {name: round(part / sum(raw), 3) for name, part in zip(ACTIVITIES[role], raw, strict=True)}
            row = {"t": time, "worker": worker, "role": role, "host": "node", "s": 1.0, "in": inside}
            used = {"cpu": round(3 * noise.random(), 2), "ram_gib": 2.5}
            if role == "rollout":
                used |= {"gpu": round(noise.random(), 3), "gpu_gib": 122.0, "gpu_celsius": 61.0}
            spans.append(row | used | {"version": int((time - START) / STEP_S), "tokens_per_s": 200.0})
    if steps:
        events.append({"t": lost, "event": "lost", "worker": "rollout-1", "text": "silent for 10 s"})
    for step in range(steps):
        at = START + (step + 1) * STEP_S
        events.append({"t": at - 0.4, "event": "trained", "worker": "trainer-0", "step": step})
    return sorted(spans, key=lambda span: span["t"]), sorted(events, key=lambda event: event["t"])
