// The first tab: the run's curves over its steps, and its epochs side by side. Owns which charts there are.

import { boundaries, Chart, Group } from "../charts/charts.js";
import { fill, h } from "../lib/dom.js";
import { bytes, known, number, percent, plural, seconds, whole } from "../lib/format.js";
import { Lengths } from "./lengths.js";
import { QueuePanel } from "./queues.js";

const MOST = 200; // epochs in the table, the newest
const SMOOTH = 5; // steps whose mean is the thick line
const BEFORE = "Appears when there are numbers of a trained step.";

/** title -> [unit, series: [label, metric, colour, more]], in the order of the page. */
const CHARTS = [
  { title: "Tokens a second", unit: "tokens/s", zero: true, series: [["rollout", "rollout/tokens_per_s", "--c1"]] },
  { title: "Acceptance length", unit: "tokens a forward", absent: "Appears when a step was written with drafts. Without drafting it is 1.",
    series: [["accepted + 1", "rollout/spec_accept_length", "--c1", { unit: "tokens" }], ["net speed-up, estimate", "rollout/spec_net_speedup", "--c2", { unit: "×", dash: [6, 4] }]] },
  { title: "Acceptance rate", unit: "share", zero: true, absent: "Appears when a step was written with drafts.",
    series: [["of drafted tokens", "rollout/spec_accept_rate", "--c1"], ["written ahead and kept", "rollout/ahead_kept_ratio", "--c3", { dash: [6, 4] }]] },
  { title: "Response length", unit: "tokens", series: [["mean", "response_length/mean", "--c1"], ["max", "response_length/max", "--c4", { dash: [6, 4], width: 1 }], ["min", "response_length/min", "--c3", { dash: [2, 3], width: 1 }]] },
  { title: "Bubble ratio", unit: "share", zero: true, series: [["slot time without a sample", "rollout/bubble_ratio", "--c4"]] },
  { title: "Staleness", unit: "steps", zero: true, series: [["mean", "staleness/mean", "--c1"], ["max", "staleness/max", "--c4", { dash: [6, 4] }]] },
  { title: "Time per phase", unit: "s", stack: true, series: [["rollout", "timing_s/rollout", "--c1"], ["reward", "timing_s/reward", "--c2"], ["train", "timing_s/train", "--c3"]] },
  { title: "Loss and mismatch", unit: "", series: [["loss", "actor/loss", "--c1"], ["mismatch KL", "mismatch_kl/mean", "--c4", { dash: [6, 4] }]] },
];

/** Small ones, in a row of their own: those that the run has. */
const HEALTH = [
  { title: "Entropy", unit: "nats/token", series: [["entropy", "actor/entropy", "--c1"]] },
  { title: "KL to the reference", unit: "nats/token", series: [["KL", "actor/kl", "--c2"]] },
  { title: "Gradient norm", unit: "", zero: true, series: [["before clipping", "actor/grad_norm", "--c3"]] },
  { title: "Clip fraction", unit: "share", zero: true, series: [["tokens clipped", "actor/pg_clipfrac", "--c4"]] },
];

export class Overview {
  constructor(host, state) {
    this.state = state;
    this.group = new Group();
    const under = boundaries(() => state.epochs);
    const chart = (options) => new Chart({ note: BEFORE, group: this.group, under, ...options });
    this.reward = chart({ title: "Reward", unit: "" });
    this.charts = CHARTS.map((options) => [chart(options), options.series]);
    this.health = HEALTH.map((options) => [chart({ ...options, height: 110 }), options.series]);
    this.healthRow = h("section", { class: "panel health", "aria-labelledby": "health-title", hidden: true }, h("h3", { id: "health-title" }, "Training health"), h("div", { class: "grid" }, this.health.map(([one]) => one.element)));
    this.growth = chart({ title: "Store growth", unit: "", note: "Appears when the first step's samples are stored.", zero: true });
    this.byEpoch = new Chart({ title: "Acceptance by epoch", unit: "tokens a forward", zero: true, note: BEFORE, absent: "Appears when an epoch has a step that was written with drafts." });
    this.meter = h("p", { class: "meter", hidden: true });
    this.growth.element.append(this.meter);
    this.lengths = new Lengths();
    this.table = h("div", { class: "scroll tall" });
    const [speed, ...others] = this.charts.map(([one]) => one.element);
    fill(host, new QueuePanel(state).element, h("div", { class: "grid" }, this.reward.element, speed, this.lengths.element, this.byEpoch.element, others, this.growth.element), this.healthRow,
      h("section", { class: "panel", "aria-labelledby": "epochs-title" }, h("h3", { id: "epochs-title" }, "Epochs"), this.table));
    state.on("steps", () => this.steps());
    state.on("store", () => this.stored());
    state.on("lengths", () => this.lengths.show(state.lengths));
    this.steps();
  }

  steps() {
    const rows = this.state.steps;
    const exams = evaluations(this.state.evaluations);
    const xs = [...new Set([...rows.map((row) => row.step + 1), ...exams.flatMap((exam) => [...exam.points.keys()])])].sort((a, b) => a - b);
    const byStep = new Map(rows.map((row) => [row.step + 1, row]));
    const column = (key) => xs.map((x) => byStep.get(x)?.[key] ?? null);
    const rewards = column("reward/mean");
    this.reward.show(xs, [
      { label: "step", values: rewards, colour: "--c1-soft", width: 1.25 },
      { label: `mean of ${SMOOTH} steps`, values: smooth(rewards), colour: "--c1", width: 2.5 },
      ...exams.slice(0, 4).map((exam, i) => ({ label: exam.label, values: xs.map((x) => exam.points.get(x) ?? null), colour: `--c${i + 2}`, dash: [6, 4], points: true })),
    ]);
    const steps = rows.map((row) => row.step + 1);
    for (const [chart, [[, key]]] of this.health) chart.element.hidden = !rows.some((row) => row[key] != null);
    this.healthRow.hidden = this.health.every(([chart]) => chart.element.hidden);
    for (const [chart, series] of [...this.charts, ...this.health]) {
      chart.show(steps, series.map(([label, key, colour, more]) => ({ label, values: rows.map((row) => row[key] ?? null), colour, ...more })));
    }
    this.grown(steps, rows);
    this.epochs();
  }

  /** Bytes of the store where the run tells them; otherwise the tokens that it wrote. */
  grown(steps, rows) {
    let sum = 0;
    const used = { label: "used", values: rows.map((row) => row["store/used_bytes"] ?? null), colour: "--c3", unit: "bytes" };
    const tokens = { label: "response tokens written", values: rows.map((row) => (sum += row["rollout/tokens"] ?? 0)), colour: "--c3", unit: "tokens" };
    this.growth.show(steps, [used.values.some(known) ? used : tokens]);
  }

  stored() {
    if (!this.state.store) return;
    const { samples, tokens, used_bytes: used, limit_bytes: limit } = this.state.store;
    this.meter.hidden = samples == null && used == null;
    const bar = limit > 0 ? h("meter", { min: 0, max: limit, value: used, high: limit * 0.85, "aria-label": "Part of the store that is used" }) : "";
    fill(this.meter, `${plural(samples, "sample")}, ${number(tokens)} tokens; ${bytes(used)}${limit > 0 && known(used) ? ` of ${bytes(limit)} (${percent(used / limit)})` : ""} `, bar);
  }

  epochs() {
    const { epochs } = this.state;
    const column = (key) => epochs.map((epoch) => epoch[key] ?? null);
    this.byEpoch.show(epochs.map((epoch) => epoch.epoch), [
      { label: "accepted + 1", values: column("accept_length"), colour: "--c1", points: true, unit: "tokens" },
      { label: "net speed-up, estimate", values: column("net_speedup"), colour: "--c2", points: true, unit: "×", dash: [6, 4] },
    ]);
    if (!epochs.length) {
      fill(this.table, h("p", { class: "none" }, "A row an epoch appears with its first trained step: compare reward, length, acceptance and time."));
      return;
    }
    const best = (key) => Math.max(...epochs.map((epoch) => epoch[key] ?? 0));
    const tops = Object.fromEntries(COLUMNS.map(([, key]) => [key, best(key)]));
    const atEnd = this.table.scrollTop + this.table.clientHeight >= this.table.scrollHeight - 4;
    fill(this.table, h("table", {},
      h("thead", {}, h("tr", {}, COLUMNS.map(([title]) => h("th", { scope: "col" }, title)))),
      h("tbody", {}, epochs.slice(-MOST).map((epoch) => h("tr", {}, COLUMNS.map(([, key, format, bar]) => h("td", {}, cell(epoch[key], format, bar && tops[key]))))))));
    if (atEnd) this.table.scrollTop = this.table.scrollHeight; // the newest are last
  }
}

const COLUMNS = [
  ["Epoch", "epoch", (value) => whole(value)],
  ["Steps", "steps", (value) => whole(value)],
  ["Reward", "reward", number, true],
  ["Length, tokens", "response_length", number, true],
  ["Accept length, tokens", "accept_length", number, true],
  ["Accept rate", "accept_rate", percent, true],
  ["Net speed-up, ×", "net_speedup", number, true],
  ["Rollout a step", "rollout_s", seconds, true],
  ["Tokens/s", "tokens_per_s", number, true],
];

function cell(value, format, top) {
  const text = h("span", {}, format(value));
  return top > 0 && value > 0 ? [text, h("i", { class: "bar-in-cell", style: { width: `${(100 * value) / top}%` } })] : text;
}

/** The mean of each value and those before it, `SMOOTH` in all; null where the step has none. */
function smooth(values) {
  const recent = [];
  return values.map((value) => {
    if (value == null) return null;
    recent.push(value);
    if (recent.length > SMOOTH) recent.shift();
    return recent.reduce((one, other) => one + other, 0) / recent.length;
  });
}

/** Curves of evaluations: [{label, points: version -> value}], accuracy first. Version v is what step v begins with. */
function evaluations(rows) {
  const keys = new Set(rows.flatMap((row) => Object.keys(row)));
  const wanted = [...keys].filter((key) => key.includes("/acc/mean@") || (key.startsWith("val/") && key.endsWith("/reward/mean"))).sort();
  return wanted.map((key) => ({ label: key, points: new Map(rows.filter((row) => row[key] != null).map((row) => [row.step, row[key]])) }));
}
