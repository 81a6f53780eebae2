// The first tab: the queues, what is learned, how fast, and the epochs side by side.

import { Chart, ZoomGroup } from "../../charts/chart.js";
import { boundaries } from "../../charts/plot.js";
import { evaluations, scorers, SMOOTH, smoothed } from "../../charts/series.js";
import { fill, h, panel } from "../../lib/dom.js";
import { epochName } from "../../lib/format.js";
import { hinted } from "../../lib/scroll.js";
import { Ridges } from "../../charts/ridges.js";
import { AdvicePanel } from "./advice.js";
import { CHARTS, EPOCH_SERIES, HEALTH, SIGNAL } from "./curves.js";
import { epochTable } from "./epochs.js";
import { QueuePanel } from "./queues.js";
import { heldOut, totals } from "./results.js";
import { StoreGrowth } from "./store.js";

const BEFORE = "Appears after the first trained step.";

export class Overview {
    constructor(host, state) {
        this.state = state;
        const group = new ZoomGroup();
        const under = boundaries(() => state.epochs);
        const chart = (options) => new Chart({ note: BEFORE, group, under, ...options });
        const all = (list, more) => list.map((options) => [chart({ ...options, ...more }), options.series]);
        this.reward = chart({ title: "Reward", unit: "" });
        this.byScorer = chart({ title: "Reward by scorer", unit: "", optional: true });
        this.signal = all(SIGNAL);
        this.health = all(HEALTH, { height: 110 });
        this.charts = all(CHARTS);
        this.byEpoch = new Chart({
            title: "Acceptance by epoch",
            unit: "tokens per forward pass",
            zero: true,
            note: BEFORE,
            absent: "Appears after an epoch with drafts.",
            at: (epoch) => epochName(epoch - 1),
        });
        this.growth = new StoreGrowth(chart);
        const note = "Appears when the first samples are in the store.";
        this.rewards = new Ridges({ title: "Reward distribution", unit: "", note });
        this.lengths = new Ridges({ title: "Length distribution", unit: "tokens", note, fromZero: true });
        this.evaluated = h("div", {});
        this.table = hinted(h("div", { class: "scroll tall" }));
        fill(host, new AdvicePanel(state).element, new QueuePanel(state).element, totals(), this.sections());
        state.on("steps", () => this.showSteps());
        state.on("store", () => this.growth.meter(state.store));
        state.on("lengths", () => this.lengths.show(state.lengths));
        state.on("rewards", () => this.rewards.show(state.rewards));
        this.showSteps();
    }

    sections() {
        const elements = (charts) => charts.map(([chart]) => chart.element);
        this.healthRow = panel(
            "Training health",
            "health",
            h("div", { class: "grid" }, elements(this.health)),
        );
        return [
            h(
                "div",
                { class: "grid" },
                this.reward.element,
                this.rewards.element,
                elements(this.signal),
                this.lengths.element,
                this.byScorer.element,
            ),
            this.evaluated,
            this.healthRow,
            h(
                "div",
                { class: "grid speed" },
                elements(this.charts),
                this.byEpoch.element,
                this.growth.element,
            ),
            panel("Epochs", "epochs", this.table),
        ];
    }

    showSteps() {
        const rows = this.state.steps;
        const steps = rows.map((row) => row.step + 1);
        this.showReward(rows);
        for (const [chart, [[, key]]] of this.health)
            chart.element.hidden = !rows.some((row) => row[key] != null);
        this.healthRow.hidden = this.health.every(([chart]) => chart.element.hidden);
        for (const [chart, series] of [...this.signal, ...this.charts, ...this.health])
            chart.show(steps, columns(rows, series));
        const parts = scorers(rows).map(([name, key], i) => [name, key, `--c${(i % 8) + 1}`]);
        this.byScorer.show(steps, columns(rows, parts.length > 1 ? parts : []));
        this.growth.show(steps, rows);
        fill(this.evaluated, heldOut(this.state.evaluations));
        this.showEpochs();
    }

    showReward(rows) {
        const evaluated = evaluations(this.state.evaluations);
        const xs = [
            ...new Set([
                ...rows.map((row) => row.step + 1),
                ...evaluated.flatMap((curve) => [...curve.points.keys()]),
            ]),
        ].sort((a, b) => a - b);
        const byStep = new Map(rows.map((row) => [row.step + 1, row]));
        const rewards = xs.map((x) => byStep.get(x)?.["reward/mean"] ?? null);
        this.reward.show(xs, [
            { label: "step", values: rewards, colour: "--c1-soft", width: 1.25 },
            { label: `mean of ${SMOOTH} steps`, values: smoothed(rewards), colour: "--c1", width: 2.5 },
            ...evaluated.slice(0, 4).map((curve, i) => ({
                label: curve.label,
                values: xs.map((x) => curve.points.get(x) ?? null),
                colour: `--c${i + 2}`,
                dash: [6, 4],
                points: true,
            })),
        ]);
    }

    showEpochs() {
        const { epochs } = this.state;
        this.byEpoch.show(
            epochs.map((epoch) => epoch.epoch + 1),
            columns(epochs, EPOCH_SERIES).map((curve) => ({ ...curve, points: true })),
        );
        const atEnd = this.table.scrollTop + this.table.clientHeight >= this.table.scrollHeight - 4;
        fill(this.table, epochTable(epochs));
        if (atEnd) this.table.scrollTop = this.table.scrollHeight; // the newest are last
    }
}

function columns(rows, series) {
    return series.map(([label, key, colour, more]) => ({
        label,
        values: rows.map((row) => row[key] ?? null),
        colour,
        ...more,
    }));
}
