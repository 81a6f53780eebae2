"""Prometheus' own parser reads what the broker reports; the dashboard and the alerts use nothing else."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from rhymed.core.messages import EVAL, GetQueues, GpuUsage, Queues, StepRow, Usage, WorkerRow
from rhymed.show.dashboard import prometheus
from rhymed.show.dashboard.prometheus import exposition
from tests.broker.cluster import Cluster, until
from tests.broker.fixtures import cluster, config

__all__ = ["cluster", "config"]

DOCS = Path(__file__).parents[3] / "docs" / "grafana"
FROM_AN_ENGINE = {
    "rollout/spec_accept_length", "rollout/spec_accept_rate", "rollout/spec_net_speedup", "rollout/ahead_kept_ratio",
    "mismatch_kl/mean", "actor/entropy", "actor/kl", "actor/grad_norm", "actor/loss", "actor/lr",
    "actor/pg_clipfrac", "actor/rejected", "reward/overlong_penalty", "perf/train_tokens_per_s",
    "timing_s/fetch", "timing_s/publish", "response_length/clip_ratio", "reward/mean", "reward/std",
    "reward/flat_groups", "timing_s/val",
    "critic/loss", "critic/grad_norm", "critic/clipfrac", "critic/value_mean", "critic/return_mean",
    "critic/explained_variance", "critic/skipped_updates",
}  # fmt: skip
"""Metrics that a run has whose workers and trainer are real ones; all are in docs/metrics.md."""


def worker(name: str, role: str = "rollout", **stats: float) -> WorkerRow:
    reported = {key.replace("__", "/"): value for key, value in stats.items()}
    return WorkerRow(
        worker=name,
        role=role,
        host="h",
        pid=1,
        slots=4,
        version=2,
        phase="",
        silent_s=0.5,
        holding=[],
        held=1,
        stats=reported,
    )  # type: ignore[arg-type]


def snapshot(**given: object) -> Queues:
    base: dict[str, object] = {
        "run": "r", "uptime_s": 3.5, "version": 2, "step": 2, "steps": 9, "finished": False,
        "queues": {"waiting": 3, "running": 1, "trained": 8, "dropped": 1}, "oldest_s": {"running": 1.5},
        "workers": [], "open_steps": [],
    }  # fmt: skip
    return Queues(**(base | given))  # type: ignore[arg-type]


def parsed(queues: Queues) -> dict[str, Metric]:
    families = list(text_string_to_metric_families(exposition(queues).decode()))
    series = [(one.name, tuple(sorted(one.labels.items()))) for family in families for one in family.samples]
    assert len(series) == len(set(series)), "Prometheus refuses a scrape with a series twice"
    return {family.name: family for family in families}


def values(family: Metric, label: str) -> dict[str, float]:
    return {one.labels[label]: one.value for one in family.samples}


def test_what_workers_use_and_each_of_their_gpus() -> None:
    gpus = [
        GpuUsage(index=3, utilization=0.91, memory=5, memory_total=9, celsius=64.0),
        GpuUsage(index=4, memory=6, memory_total=9),
    ]
    usage = Usage(cpu=1.5, memory=1 << 30, processes=3, gpus=gpus)
    busy, without = worker("rollout-0"), worker("rollout-1")
    found = parsed(snapshot(workers=[msgspec.structs.replace(busy, usage=usage), without]))
    assert values(found["rhymed_worker_cpu"], "worker") == {"rollout-0": 1.5}
    assert values(found["rhymed_worker_memory_bytes"], "worker") == {"rollout-0": 1 << 30}
    assert values(found["rhymed_worker_gpu_utilization"], "gpu") == {"3": 0.91}
    assert values(found["rhymed_worker_gpu_memory_bytes"], "gpu") == {"3": 5, "4": 6}
    assert values(found["rhymed_worker_gpu_memory_total_bytes"], "gpu") == {"3": 9, "4": 9}
    assert values(found["rhymed_worker_gpu_celsius"], "gpu") == {"3": 64}


def test_queues_are_gauges_in_seconds_and_what_is_over_is_a_counter() -> None:
    found = parsed(snapshot(counts={"trained": 8, "dropped": 1, "tokens": 99, "lost": 1, "opened": 13}, lag_ms=12.0))
    assert values(found["rhymed_queue_samples"], "queue") == {"waiting": 3, "running": 1}
    assert values(found["rhymed_queue_oldest_seconds"], "queue") == {"waiting": 0, "running": 1.5}
    assert found["rhymed_samples"].type == found["rhymed_tokens"].type == "counter"
    assert values(found["rhymed_samples"], "event") == {
        "dropped": 1,
        "generated": 0,
        "opened": 13,
        "scored": 0,
        "trained": 8,
    }
    assert found["rhymed_event_loop_lag_seconds"].samples[0].value == pytest.approx(0.012)
    assert found["rhymed_event_loop_lag_seconds"].samples[0].labels == {"run": "r"}


def test_every_metric_of_a_step_is_there_also_one_that_is_no_number() -> None:
    metrics = {"reward/mean": 0.25, "timing_s/step": 2.0, "actor/kl": math.nan, "actor/loss": -math.inf}
    found = parsed(snapshot(metrics=metrics, val={"val/gsm8k/acc/mean@4": 0.5, "val/version": 3.0}))
    assert {f"rhymed_{prometheus.allowed(name)}" for name in metrics} <= found.keys()
    assert found["rhymed_reward_mean"].samples[0].value == 0.25
    assert math.isnan(found["rhymed_actor_kl"].samples[0].value)
    assert found["rhymed_actor_loss"].samples[0].value == -math.inf
    assert found["rhymed_val_gsm8k_acc_mean_4"].samples[0].value == 0.5


def test_workers_tell_under_listed_names_only() -> None:
    stats = {"rollout/tokens_per_s": 210.0, "seconds/verify": 7.0, "seconds/score": 1.0, "cpu/secret": 1.0}
    row = worker('rollout-0@"h\\\n', **{key.replace("/", "__"): value for key, value in stats.items()})
    found = parsed(snapshot(workers=[row, worker("reward-0", "reward", reward__scored=5.0)]))
    assert values(found["rhymed_worker_tokens_per_second"], "worker") == {'rollout-0@"h\\\\n': 210.0}
    assert values(found["rhymed_worker_seconds"], "activity") == {"verify": 7.0}
    assert values(found["rhymed_worker_scored"], "worker") == {"reward-0": 5.0}
    assert values(found["rhymed_worker_held_samples"], "role") == {"rollout": 1, "reward": 1}
    assert values(found["rhymed_workers"], "role") == {"rollout": 1, "reward": 1, "trainer": 0}
    assert not any("secret" in name for name in found)


def test_names_that_look_alike_do_not_break_the_scrape() -> None:
    metrics = {"reward/a-b/mean": 1.0, "reward/a.b/mean": 2.0, "step": 7.0, "queue/samples": 8.0, "ü/\n": 1.0}
    found = parsed(snapshot(metrics=metrics))
    assert found["rhymed_reward_a_b_mean"].samples[0].value == 1.0
    assert found["rhymed_step"].samples[0].value == 2
    assert values(found["rhymed_queue_samples"], "queue") == {"waiting": 3, "running": 1}


def test_the_number_of_series_is_bounded() -> None:
    workers = [worker(f"rollout-{number:05}", rollout__tokens_per_s=1.0) for number in range(5000)]
    steps = [StepRow(step=step, states={}, groups_ready=0, groups=1, open_s=1.0) for step in (*range(40), EVAL + 3)]
    found = parsed(snapshot(workers=workers, open_steps=steps, metrics={f"x/{one}": 1.0 for one in range(5000)}))
    assert len(found["rhymed_worker_tokens_per_second"].samples) == prometheus.MAX_WORKERS == 4096
    assert found["rhymed_workers_left_out"].samples[0].value == 904
    assert values(found["rhymed_workers"], "role")["rollout"] == 5000
    assert list(values(found["rhymed_open_step_groups"], "step")) == [str(step) for step in range(24, 40)]
    assert sum(name.startswith("rhymed_x_") for name in found) == prometheus.MAX_METRICS


def panels() -> list[dict]:
    """All of the dashboard."""
    found: list[dict] = json.loads((DOCS / "rhymed.json").read_text())["panels"]
    return found


def asked() -> dict[str, set[str]]:
    """Metrics that the dashboard's panels and the alerts ask for, by where."""
    texts = {panel["title"]: [target["expr"] for target in panel.get("targets", [])] for panel in panels()}
    texts["alerts"] = re.findall(r"^ *expr: (.*)$", (DOCS / "alerts.yml").read_text(), re.MULTILINE)
    return {
        title: set(re.findall(r"\brhymed_[a-z0-9_]+", " ".join(found))) for title, found in texts.items() if found
    }


async def test_all_that_the_dashboard_asks_for_is_there_in_a_real_run(cluster: Cluster) -> None:
    await cluster.everybody()
    broker = cluster.broker
    await until(lambda: broker.latest._metrics and broker.latest.store, "a step, and a look at the store")
    queues = broker._queues(b"", GetQueues())
    assert isinstance(queues, Queues)
    assert queues.counts["trained"] >= 1
    assert queues.counts["tokens"] >= 1
    assert queues.store["used_bytes"] > 0
    seen = set(re.findall(r"^# TYPE (\S+)", exposition(queues).decode(), re.MULTILINE))
    seen |= {f"rhymed_{prometheus.allowed(name)}" for name in FROM_AN_ENGINE}
    seen |= {f"rhymed_worker_{name}" for name, _, _ in prometheus.WORKER_STATS.values()} | {
        "rhymed_worker_seconds_total"
    }
    for title, wanted in asked().items():
        assert wanted <= seen, title


def test_what_only_engines_tell_is_documented() -> None:
    documented = (DOCS.parent / "metrics.md").read_text()
    for name in FROM_AN_ENGINE:
        group, last = name.split("/")
        assert f"`{group}/{last}`" in documented or f"`/{last}`" in documented, name


def promtool(*arguments: str | Path, given: bytes = b"") -> None:
    done = subprocess.run(["promtool", *arguments], input=given, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus' promtool is not installed")
def test_promtool_finds_nothing_wrong(tmp_path: Path) -> None:
    """In the text, in the alerts, and in what the dashboard asks, once Grafana has filled in its variables."""
    text = exposition(snapshot(workers=[worker("w", rollout__tokens_per_s=1.0)], counts={"trained": 1}))
    promtool("check", "metrics", given=text)
    promtool("check", "rules", DOCS / "alerts.yml")
    asks = [target["expr"] for panel in panels() for target in panel.get("targets", [])]
    filled = [ask.replace("$run", ".*").replace("$__rate_interval", "5m") for ask in asks]
    rules = [{"record": f"asked_{number}", "expr": ask} for number, ask in enumerate(filled)]
    (tmp_path / "asked.json").write_text(json.dumps({"groups": [{"name": "asked", "rules": rules}]}))
    promtool("check", "rules", tmp_path / "asked.json")


def test_the_dashboard_names_no_data_source_of_its_own() -> None:
    dashboard = json.loads((DOCS / "rhymed.json").read_text())
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert {one["datasource"]["uid"] for one in panels() if one["type"] != "row"} == {"${datasource}"}
    assert len({one["id"] for one in panels()}) == len(panels())
    taken = [
        (place["x"] + x, place["y"] + y)
        for place in (one["gridPos"] for one in panels())
        for x in range(place["w"])
        for y in range(place["h"])
    ]
    assert len(taken) == len(set(taken)), "panels lie on each other"
    assert max(x for x, _ in taken) < 24
