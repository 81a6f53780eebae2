// Histograms of one number on a common scale: one row per epoch, or if there are many, for a selection that includes
// the newest. Another epoch can be drawn over all rows as an outline. Bins may differ between epochs, so heights are shares
// per unit of width.

import { fill, onFrame, h, option, setText } from "../lib/dom.js";
import { capital, epochName, number, percent, plural, withUnit } from "../lib/format.js";
import { colour, onTheme } from "../lib/theme.js";
import { framed, logButton } from "./chart.js";

const LABEL = 76; // pixels to the left of the rows
const ALL = 154; // pixels of all rows: the card is as high as the curves next to it
const TALLEST = 46;
const MOST = 12; // rows

export class Ridges {
    /** `options`: title, unit (of values in sentences), note (while there is none), fromZero (the axis begins at 0). */
    constructor(options) {
        this.options = options;
        this.epochs = [];
        this.canvas = h("canvas", { role: "img", tabindex: "0", "aria-label": options.title });
        this.compare = h("select", { "aria-label": "Compare all epochs with", onchange: () => this.draw() });
        this.log = logButton(() => this.toggle());
        this.status = h("p", { class: "status", role: "status" });
        this.none = h("p", { class: "none" }, options.note);
        this.host = h("div", { class: "ridges" }, this.canvas);
        const tools = [this.compare, options.fromZero ? this.log : ""];
        this.element = framed(options, tools, this.status, this.host, this.none);
        this.draw = onFrame(() => this.paint());
        this.canvas.addEventListener("pointermove", (event) => this.point(event));
        this.canvas.addEventListener("pointerleave", () => this.summarise());
        onTheme(this.draw);
        new ResizeObserver(this.draw).observe(this.element);
        this.show(null);
    }

    show(answer) {
        this.epochs = (answer?.epochs ?? []).filter((epoch) => epoch.counts.some((count) => count > 0));
        const some = this.epochs.length > 0;
        this.none.hidden = some;
        this.host.hidden = this.status.hidden = this.log.hidden = !some;
        this.compare.hidden = this.epochs.length < 2;
        const chosen = this.compare.value;
        fill(
            this.compare,
            option("", "compare with …"),
            this.epochs.map((epoch) => option(String(epoch.epoch), epochName(epoch.epoch))),
        );
        this.compare.value = this.epochs.some((epoch) => String(epoch.epoch) === chosen) ? chosen : "";
        if (some) this.summarise();
        this.draw();
    }

    toggle() {
        this.log.setAttribute("aria-pressed", String(this.log.getAttribute("aria-pressed") !== "true"));
        this.draw();
    }

    get logarithmic() {
        return this.log.getAttribute("aria-pressed") === "true";
    }

    /** In words. */
    value(value) {
        return withUnit(value, this.options.unit);
    }

    summarise() {
        const last = this.epochs[this.epochs.length - 1];
        const samples = last.counts.reduce((a, b) => a + b, 0);
        const text = `${capital(epochName(last.epoch))}: mean ${number(last.mean)}, highest ${this.value(last.max)}, ${plural(samples, "sample")}`;
        setText(this.status, text);
        this.canvas.setAttribute(
            "aria-label",
            `${this.options.title} in ${plural(this.epochs.length, "epoch")}${this.epochs.length > MOST ? `, of which ${MOST} are drawn` : ""}. ${text}`,
        );
    }

    paint() {
        const wide = this.host.clientWidth;
        if (!wide || !this.epochs.length) return;
        this.drawn = spread(this.epochs, MOST);
        this.height = Math.min(TALLEST, ALL / this.drawn.length);
        this.width = wide - LABEL - 8;
        const tall = this.drawn.length * this.height + 24;
        const ratio = devicePixelRatio || 1;
        Object.assign(this.canvas, { width: wide * ratio, height: tall * ratio });
        this.canvas.style.height = `${tall}px`;
        const pen = this.canvas.getContext("2d");
        pen.scale(ratio, ratio);
        pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
        const other = this.epochs.find((epoch) => String(epoch.epoch) === this.compare.value);
        const all = other ? [...this.drawn, other] : this.drawn;
        this.high = Math.max(...all.map(lastEdge));
        this.low = Math.min(...all.map(firstEdge));
        if (this.logarithmic) this.low = Math.max(1, this.low);
        else if (this.options.fromZero) this.low = 0;
        this.scale(pen);
        const top = Math.max(...all.map((epoch) => Math.max(...this.heights(epoch))));
        this.drawn.forEach((epoch, i) => this.row(pen, epoch, (i + 1) * this.height, top, other));
    }

    /** Share of the samples per pixel of each bin, so that wide bins do not look like many samples. */
    heights(epoch) {
        const sum = epoch.counts.reduce((a, b) => a + b, 0);
        return epoch.counts.map(
            (count, i) => count / sum / Math.max(0.5, this.x(epoch.edges[i + 1]) - this.x(epoch.edges[i])),
        );
    }

    row(pen, epoch, base, top, other) {
        const scale = (this.height - 4) / top;
        const heights = this.heights(epoch);
        pen.fillStyle = colour("--c1-soft");
        heights.forEach((height, i) => {
            if (!height) return;
            const left = this.x(epoch.edges[i]);
            pen.fillRect(
                left,
                base - Math.max(0.75, height * scale),
                Math.max(1, this.x(epoch.edges[i + 1]) - left + 0.2),
                Math.max(0.75, height * scale),
            );
        });
        pen.fillStyle = colour("--grid");
        pen.fillRect(LABEL, base, this.width, 1);
        if (other && other !== epoch) this.outline(pen, other, base, scale);
        pen.fillStyle = colour("--c4");
        pen.fillRect(
            this.x(epoch.mean) - 1,
            base - Math.min(this.height - 4, 14),
            2,
            Math.min(this.height - 4, 14),
        );
        pen.fillStyle = colour("--ink");
        pen.textAlign = "left";
        pen.textBaseline = "bottom";
        pen.fillText(epochName(epoch.epoch), 0, base);
    }

    outline(pen, epoch, base, scale) {
        pen.strokeStyle = colour("--c2");
        pen.lineWidth = 1.5;
        pen.beginPath();
        pen.moveTo(this.x(epoch.edges[0]), base);
        this.heights(epoch).forEach((height, i) => {
            pen.lineTo(this.x(epoch.edges[i]), base - height * scale);
            pen.lineTo(this.x(epoch.edges[i + 1]), base - height * scale);
        });
        pen.stroke();
    }

    scale(pen) {
        pen.fillStyle = colour("--muted");
        pen.textBaseline = "top";
        const bottom = this.drawn.length * this.height + 6;
        const ticks = this.logarithmic
            ? powers(this.low, this.high)
            : nice(this.low, this.high, this.width / 80);
        let free = 0;
        for (const tick of ticks) {
            const x = this.x(tick);
            const text = number(tick);
            const half = pen.measureText(text).width / 2;
            pen.textAlign = "center";
            if (x - half < free || x + half > LABEL + this.width + 8) continue;
            pen.fillText(text, x, bottom);
            free = x + half + 12;
        }
    }

    x(value) {
        const share = this.logarithmic
            ? Math.log(Math.max(value, this.low) / this.low) / Math.log(this.high / this.low || 2)
            : (value - this.low) / (this.high - this.low || 1);
        return LABEL + share * this.width;
    }

    point(event) {
        const epoch = this.drawn?.[Math.floor(event.offsetY / this.height)];
        const bin = epoch?.counts.findIndex(
            (_, i) => event.offsetX >= this.x(epoch.edges[i]) && event.offsetX < this.x(epoch.edges[i + 1]),
        );
        if (!epoch || bin < 0) return;
        const sum = epoch.counts.reduce((a, b) => a + b, 0);
        setText(
            this.status,
            `${capital(epochName(epoch.epoch))}, ${number(epoch.edges[bin])} to ${this.value(epoch.edges[bin + 1])}: ${plural(epoch.counts[bin], "sample")}, ${percent(epoch.counts[bin] / sum)}; mean ${number(epoch.mean)}`,
        );
    }
}

/** At most `most` of them: the first, the last, and others evenly between. */
function spread(epochs, most) {
    if (epochs.length <= most) return epochs;
    return Array.from({ length: most }, (_, i) => epochs[Math.round((i * (epochs.length - 1)) / (most - 1))]);
}

function firstEdge(epoch) {
    return epoch.edges[
        Math.max(
            0,
            epoch.counts.findIndex((count) => count > 0),
        )
    ];
}

function lastEdge(epoch) {
    return epoch.edges[epoch.counts.findLastIndex((count) => count > 0) + 1];
}

function nice(low, high, most) {
    const rough = (high - low) / Math.max(1, most);
    const power = 10 ** Math.floor(Math.log10(rough || 1));
    const step = [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= rough);
    const first = Math.ceil(low / step);
    return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => (first + i) * step);
}

function powers(low, high) {
    const ticks = [];
    for (let power = 1; power <= high; power *= 10)
        for (const digit of [1, 2, 5])
            if (power * digit >= low && power * digit <= high) ticks.push(power * digit);
    return ticks;
}
