// Curves of the chosen runs in one chart per metric: a large one of a metric of choice, and small ones of the usual metrics.
// Owns the choice of metric, x axis and smoothing, which is also in the address.

import { Chart, ZoomGroup } from "../charts/chart.js";
import { fill, h, option } from "../lib/dom.js";
import { number, seconds, unit } from "../lib/format.js";
import * as api from "./api.js";
import { aligned, smoothed } from "./columns.js";

const USUAL = [
    "reward/mean",
    "response_length/mean",
    "rollout/tokens_per_s",
    "actor/entropy",
    "timing_s/step",
];
const SMOOTH = [
    ["1", "every value"],
    ["5", "mean of 5"],
    ["20", "mean of 20"],
];

export class Curves {
    constructor(host, state) {
        this.state = state;
        this.charts = new Map(); // metric -> Chart
        this.metric = h("select", { id: "metric", "aria-label": "Metric", onchange: () => this.changed() });
        this.by = h(
            "select",
            { id: "by", "aria-label": "X axis", onchange: () => this.changed() },
            option("steps", "over steps"),
            option("hours", "over hours of work"),
        );
        this.smooth = h(
            "select",
            { id: "smooth", "aria-label": "Smoothing", onchange: () => this.changed() },
            SMOOTH.map(([value, label]) => option(value, label)),
        );
        this.status = h("span", { class: "muted", role: "status" });
        this.large = h("div", { class: "large" });
        this.small = h("div", { class: "grid" });
        fill(
            host,
            h("div", { class: "bar" }, this.metric, this.by, this.smooth, this.status),
            this.large,
            this.small,
        );
        state.on("runs chosen", () => this.refresh());
    }

    show({ query }) {
        this.asked = query.get("m") ?? this.asked;
        if (query.get("by")) this.by.value = query.get("by") === "hours" ? "hours" : "steps";
        if (query.get("smooth")) this.smooth.value = query.get("smooth");
        this.refresh();
    }

    changed() {
        this.asked = this.metric.value;
        this.state.remember({
            m: this.asked,
            by: this.by.value === "steps" ? "" : this.by.value,
            smooth: this.smooth.value === "1" ? "" : this.smooth.value,
        });
        this.refresh();
    }

    async refresh() {
        const { ids } = this.state;
        this.aborter?.abort();
        const { signal } = (this.aborter = new AbortController());
        if (!ids.length) {
            this.names = null;
            this.draw({}, []);
            return;
        }
        try {
            await this.list(ids);
            if (signal.aborted) return;
            const wanted = [...new Set([this.metric.value, ...this.usual()])];
            const { curves } = await api.curves(ids, wanted, signal);
            if (!signal.aborted) this.draw(curves, wanted);
        } catch (error) {
            if (!signal.aborted) this.status.textContent = error.message;
        }
    }

    /** The metrics that the chosen runs have. */
    async list(ids) {
        const { metrics } = await api.metrics(ids);
        if (metrics.join() !== this.names?.join()) {
            this.names = metrics;
            fill(
                this.metric,
                metrics.map((name) => option(name)),
            );
        }
        const wanted = this.asked ?? this.held()[0] ?? USUAL[0];
        this.metric.value = metrics.includes(wanted)
            ? wanted
            : metrics.includes(USUAL[0])
              ? USUAL[0]
              : metrics[0];
    }

    held() {
        return (this.names ?? []).filter((name) => name.startsWith("val/") && name.endsWith("/reward/mean"));
    }

    usual() {
        const [first, ...rest] = USUAL;
        return [first, ...this.held(), ...rest].filter((name) => this.names.includes(name));
    }

    draw(curves, wanted) {
        const by = this.by.value;
        const key = `${by} ${wanted}`;
        if (key !== this.drawn) {
            this.drawn = key;
            for (const chart of this.charts.values()) chart.close();
            const group = new ZoomGroup();
            this.charts = new Map(wanted.map((name, at) => [name, chartOf(name, by, at === 0, group)]));
            const elements = [...this.charts.values()].map((chart) => chart.element);
            fill(this.large, elements.slice(0, 1));
            fill(this.small, elements.slice(1));
        }
        this.status.textContent = this.state.ids.length ? "" : "Choose runs in the list above.";
        const window = Number(this.smooth.value);
        for (const [name, chart] of this.charts) {
            const [xs, columns] = aligned(curves[name] ?? {}, this.state.ids, by);
            chart.show(
                xs,
                this.state.ids.map((id, at) => ({
                    label: this.state.name(id),
                    values: smoothed(columns[at], window),
                    colour: this.state.colour(id),
                    unit: unit(name),
                })),
            );
        }
    }
}

function chartOf(name, by, large, group) {
    return new Chart({
        title: name,
        unit: unit(name),
        note: "Choose runs that have this metric.",
        absent: "None of the chosen runs has this.",
        height: large ? 340 : undefined,
        whole: by === "steps",
        at: by === "steps" ? (x) => `after step ${number(x)}` : (x) => seconds(x * 3600),
        group,
    });
}
