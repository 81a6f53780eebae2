// The first tab: the run's curves over its steps, and its epochs side by side.

import { Chart, ZoomGroup } from "../charts/chart.js";
import { boundaries } from "../charts/plot.js";
import { fill, h } from "../lib/dom.js";
import { bytes, known, number, percent, plural } from "../lib/format.js";
import { Lengths } from "../charts/lengths.js";
import { CHARTS, EPOCH_SERIES, HEALTH } from "./curves.js";
import { epochTable } from "./epochs.js";
import { QueuePanel } from "./queues.js";

const SMOOTH = 5; // steps in the mean that the thick line shows
const BEFORE = "Appears after the first trained step.";

export class Overview {
    constructor(host, state) {
        this.state = state;
        this.group = new ZoomGroup();
        const under = boundaries(() => state.epochs);
        const chart = (options) => new Chart({ note: BEFORE, group: this.group, under, ...options });
        this.reward = chart({ title: "Reward", unit: "" });
        this.charts = CHARTS.map((options) => [chart(options), options.series]);
        this.health = HEALTH.map((options) => [chart({ ...options, height: 110 }), options.series]);
        this.healthRow = h(
            "section",
            { class: "panel health", "aria-labelledby": "health-title", hidden: true },
            h("h3", { id: "health-title" }, "Training health"),
            h(
                "div",
                { class: "grid" },
                this.health.map(([chart]) => chart.element),
            ),
        );
        this.growth = chart({
            title: "Store growth",
            unit: "",
            note: "Appears when the first step's samples are stored.",
            zero: true,
        });
        this.byEpoch = new Chart({
            title: "Acceptance by epoch",
            unit: "tokens per forward pass",
            zero: true,
            note: BEFORE,
            absent: "Appears after an epoch with drafts.",
        });
        this.meter = h("p", { class: "meter", hidden: true });
        this.growth.element.append(this.meter);
        this.lengths = new Lengths();
        this.table = h("div", { class: "scroll tall" });
        const [speed, ...others] = this.charts.map(([chart]) => chart.element);
        fill(
            host,
            new QueuePanel(state).element,
            h(
                "div",
                { class: "grid" },
                this.reward.element,
                speed,
                this.lengths.element,
                this.byEpoch.element,
                others,
                this.growth.element,
            ),
            this.healthRow,
            h(
                "section",
                { class: "panel", "aria-labelledby": "epochs-title" },
                h("h3", { id: "epochs-title" }, "Epochs"),
                this.table,
            ),
        );
        state.on("steps", () => this.showSteps());
        state.on("store", () => this.showStore());
        state.on("lengths", () => this.lengths.show(state.lengths));
        this.showSteps();
    }

    showSteps() {
        const rows = this.state.steps;
        const evaluated = evaluations(this.state.evaluations);
        const xs = [
            ...new Set([
                ...rows.map((row) => row.step + 1),
                ...evaluated.flatMap((curve) => [...curve.points.keys()]),
            ]),
        ].sort((a, b) => a - b);
        const byStep = new Map(rows.map((row) => [row.step + 1, row]));
        const column = (key) => xs.map((x) => byStep.get(x)?.[key] ?? null);
        const rewards = column("reward/mean");
        this.reward.show(xs, [
            { label: "step", values: rewards, colour: "--c1-soft", width: 1.25 },
            { label: `mean of ${SMOOTH} steps`, values: smooth(rewards), colour: "--c1", width: 2.5 },
            ...evaluated.slice(0, 4).map((curve, i) => ({
                label: curve.label,
                values: xs.map((x) => curve.points.get(x) ?? null),
                colour: `--c${i + 2}`,
                dash: [6, 4],
                points: true,
            })),
        ]);
        const steps = rows.map((row) => row.step + 1);
        for (const [chart, [[, key]]] of this.health)
            chart.element.hidden = !rows.some((row) => row[key] != null);
        this.healthRow.hidden = this.health.every(([chart]) => chart.element.hidden);
        for (const [chart, series] of [...this.charts, ...this.health]) {
            chart.show(
                steps,
                series.map(([label, key, colour, more]) => ({
                    label,
                    values: rows.map((row) => row[key] ?? null),
                    colour,
                    ...more,
                })),
            );
        }
        this.showGrowth(steps, rows);
        this.showEpochs();
    }

    /** The store's bytes if the run reports them; otherwise the generated tokens. */
    showGrowth(steps, rows) {
        let sum = 0;
        const used = {
            label: "used",
            values: rows.map((row) => row["store/used_bytes"] ?? null),
            colour: "--c3",
            unit: "bytes",
        };
        const tokens = {
            label: "response tokens generated",
            values: rows.map((row) => (sum += row["rollout/tokens"] ?? 0)),
            colour: "--c3",
            unit: "tokens",
        };
        this.growth.show(steps, [used.values.some(known) ? used : tokens]);
    }

    showStore() {
        if (!this.state.store) return;
        const { samples, tokens, used_bytes: used, limit_bytes: limit } = this.state.store;
        this.meter.hidden = samples == null && used == null;
        const bar =
            limit > 0
                ? h("meter", {
                      min: 0,
                      max: limit,
                      value: used,
                      high: limit * 0.85,
                      "aria-label": "Used part of the store",
                  })
                : "";
        fill(
            this.meter,
            `${plural(samples, "sample")}, ${number(tokens)} tokens; ${bytes(used)}${limit > 0 && known(used) ? ` of ${bytes(limit)} (${percent(used / limit)})` : ""} `,
            bar,
        );
    }

    showEpochs() {
        const { epochs } = this.state;
        const column = (key) => epochs.map((epoch) => epoch[key] ?? null);
        this.byEpoch.show(
            epochs.map((epoch) => epoch.epoch),
            EPOCH_SERIES.map(([label, key, colour, more]) => ({
                label,
                values: column(key),
                colour,
                points: true,
                ...more,
            })),
        );
        const atEnd = this.table.scrollTop + this.table.clientHeight >= this.table.scrollHeight - 4;
        fill(this.table, epochTable(epochs));
        if (atEnd) this.table.scrollTop = this.table.scrollHeight; // the newest are last
    }
}

/** The mean of each value and those before it, at most `SMOOTH`; null where the step has none. */
function smooth(values) {
    const recent = [];
    return values.map((value) => {
        if (value == null) return null;
        recent.push(value);
        if (recent.length > SMOOTH) recent.shift();
        return recent.reduce((a, b) => a + b, 0) / recent.length;
    });
}

/** Curves of evaluations: [{label, points: version -> value}], accuracy first. Version v is the one that step v starts with. */
function evaluations(rows) {
    const keys = new Set(rows.flatMap((row) => Object.keys(row)));
    const wanted = [...keys]
        .filter(
            (key) => key.includes("/acc/mean@") || (key.startsWith("val/") && key.endsWith("/reward/mean")),
        )
        .sort();
    return wanted.map((key) => ({
        label: key,
        points: new Map(rows.filter((row) => row[key] != null).map((row) => [row.step, row[key]])),
    }));
}
