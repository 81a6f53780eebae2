// The workers' Gantt chart on a canvas: one row per worker, seconds by activity as coloured bands. Owns the window of time
// and how it is moved (Ctrl + wheel, drag, keys, buttons). Only visible rows are drawn. Knows a Timeline, not the server.

import { at } from "./timeline.js";
import { empty, fill, onFrame, h, option, setText } from "../lib/dom.js";
import { clock, seconds } from "../lib/format.js";
import { axis, marks } from "./ganttmarks.js";
import { row } from "./ganttrows.js";
import { Legend, Tip } from "./gantttip.js";
import { onTheme } from "../lib/theme.js";

const HEAD = 34; // pixels above the first row: times and the run's marks
const SHORTEST_S = 0.5;
const RANGES = [
    ["all", "whole run"],
    ["60", "last minute"],
    ["300", "last 5 min"],
    ["1800", "last 30 min"],
    ["7200", "last 2 h"],
];

export class Gantt {
    constructor(host, timeline) {
        this.timeline = timeline; // () => Timeline
        this.span = 0; // seconds up to now that are shown; 0: the whole run
        this.window = null; // [from, to] after the user moved it; null: it follows the run
        this.rows = [];
        this.build(host);
        this.draw = onFrame(() => this.paint());
        onTheme(this.draw);
        new ResizeObserver(this.draw).observe(this.scroller);
        this.scroller.addEventListener("scroll", this.draw);
    }

    build(host) {
        const button = (label, text, work) =>
            h("button", { type: "button", onclick: work, "aria-label": label, title: label }, text);
        this.range = h(
            "select",
            { "aria-label": "Time shown", onchange: () => this.follow(Number(this.range.value) || 0) },
            RANGES.map(([value, label]) => option(value, label)),
            h("option", { value: "own", hidden: true }, "custom"),
        );
        this.status = h("span", { class: "muted grow", id: "gantt-window" });
        this.canvas = h("canvas", {
            tabindex: "0",
            role: "img",
            "aria-describedby": "gantt-window gantt-keys",
            "aria-label": "Worker timeline",
        });
        this.spacer = h("div", { class: "gantt-spacer" });
        this.select = h("div", { class: "gantt-select", hidden: true });
        this.scroller = h("div", { class: "gantt" }, this.canvas, this.spacer, this.select);
        this.legend = new Legend();
        this.tip = new Tip();
        this.none = empty(
            "No worker has reported its activity yet",
            "Rows appear here as soon as a worker sends its first heartbeats, about a second after it joins.",
        );
        fill(
            host,
            h(
                "div",
                { class: "bar" },
                this.range,
                button("Zoom in", "+", () => this.zoom(0.5)),
                button("Zoom out", "−", () => this.zoom(2)),
                button("Show the whole run", "⤢", () => this.follow(0)),
                this.status,
            ),
            this.legend.element,
            this.scroller,
            this.none,
            this.tip.element,
            h(
                "p",
                { class: "muted hint", id: "gantt-keys" },
                "Ctrl (or ⌘ or Shift) + wheel zooms, drag selects a range, Shift + drag moves, double click shows all. Keys: arrows, + and −, 0.",
            ),
        );
        const canvas = this.canvas;
        canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
        canvas.addEventListener("pointerdown", (event) => this.press(event));
        canvas.addEventListener("pointermove", (event) => this.move(event));
        canvas.addEventListener("pointerup", (event) => this.release(event));
        canvas.addEventListener("pointerleave", () => this.tip.hide());
        canvas.addEventListener("dblclick", () => this.follow(0));
        canvas.addEventListener("keydown", (event) => this.key(event));
        canvas.addEventListener("blur", () => this.tip.hide());
    }

    /** [from, to], Unix seconds. */
    shown() {
        const { oldest, newest } = this.timeline();
        if (this.window) return this.window;
        const from = this.span ? Math.max(oldest, newest - this.span) : oldest;
        return [from, Math.max(newest, from + SHORTEST_S)];
    }

    follow(span) {
        this.span = span;
        this.window = null;
        this.range.value = String(span || "all");
        this.draw();
    }

    setWindow(from, to) {
        const { oldest, newest } = this.timeline();
        const whole = Math.max(newest - oldest, SHORTEST_S);
        const length = Math.min(Math.max(to - from, SHORTEST_S), whole);
        const start = Math.min(Math.max(from, oldest), oldest + whole - length);
        this.window = [start, start + length];
        this.range.value = "own";
        this.draw();
    }

    zoom(factor, around = 0.5) {
        const [from, to] = this.shown();
        const centre = from + (to - from) * around;
        this.setWindow(centre - (to - from) * factor * around, centre + (to - from) * factor * (1 - around));
    }

    pan(share) {
        const [from, to] = this.shown();
        this.setWindow(from + (to - from) * share, to + (to - from) * share);
    }

    paint() {
        const timeline = this.timeline();
        this.rows = timeline.rows();
        const some = this.rows.length > 0 && Number.isFinite(timeline.oldest);
        this.none.hidden = some;
        this.scroller.hidden = this.legend.element.hidden = !some;
        if (!some || !this.scroller.clientWidth) return;
        this.measure();
        const [from, to] = this.shown();
        const pen = this.pen();
        const first = Math.floor(this.scroller.scrollTop / this.height);
        const last = Math.min(
            this.rows.length,
            first + Math.ceil(this.canvas.clientHeight / this.height) + 1,
        );
        for (let i = first; i < last; i++) row(pen, this, timeline, i, from, to);
        marks(pen, this, timeline, from, to, first, last);
        axis(pen, this, from, to);
        setText(
            this.status,
            `${clock(from)} to ${clock(to)}, ${seconds(to - from)}, ${this.rows.length} workers`,
        );
        this.legend.show(timeline, this.rows, from, to);
        this.canvas.setAttribute(
            "aria-label",
            `Timeline of ${this.rows.length} workers. ${this.legend.text}`,
        );
        this.tip.update(this);
    }

    measure() {
        const count = this.rows.length;
        this.height = count > 200 ? 8 : count > 40 ? 14 : 24;
        this.gutter = this.scroller.clientWidth < 560 ? 84 : 136;
        this.width = Math.max(50, this.scroller.clientWidth - this.gutter);
        const whole = HEAD + count * this.height + 4;
        const tall = Math.min(whole, 560);
        this.scroller.style.height = `${tall}px`;
        this.spacer.style.height = `${Math.max(0, whole - tall)}px`;
        const ratio = devicePixelRatio || 1;
        const [w, t] = [Math.round((this.gutter + this.width) * ratio), Math.round(tall * ratio)];
        if (this.canvas.width !== w || this.canvas.height !== t)
            Object.assign(this.canvas, { width: w, height: t });
        this.canvas.style.height = `${tall}px`;
        this.canvas.style.width = `${this.gutter + this.width}px`;
    }

    pen() {
        const pen = this.canvas.getContext("2d");
        const ratio = devicePixelRatio || 1;
        pen.setTransform(ratio, 0, 0, ratio, 0, 0);
        pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
        pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
        return pen;
    }

    top(i) {
        return HEAD + i * this.height - this.scroller.scrollTop;
    }

    x(time, from, to) {
        return this.gutter + ((time - from) / (to - from)) * this.width;
    }

    time(x) {
        const [from, to] = this.shown();
        return from + ((x - this.gutter) / this.width) * (to - from);
    }

    /** What is at a point of the canvas: {worker, span, time, second: one pixel later}; null outside the rows. */
    under(x, y) {
        const worker = this.rows[Math.floor((y - HEAD + this.scroller.scrollTop) / this.height)];
        if (!worker || y < HEAD) return null;
        const time = this.time(Math.max(x, this.gutter));
        return {
            worker,
            span: at(worker.spans, time),
            time,
            second: this.time(Math.max(x, this.gutter) + 1),
        };
    }

    /** The wheel alone scrolls the page. With Shift, some browsers report it as horizontal. */
    wheel(event) {
        const zooms = event.ctrlKey || event.metaKey || event.shiftKey;
        if (!zooms && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
        event.preventDefault();
        if (!zooms) this.pan(Math.sign(event.deltaX) * 0.1);
        else
            this.zoom(
                (event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8,
                Math.min(1, Math.max(0, (event.offsetX - this.gutter) / this.width)),
            );
    }

    press(event) {
        if (event.button !== 0) return;
        this.held = { x: event.offsetX, window: this.shown(), pan: event.shiftKey };
        this.canvas.setPointerCapture(event.pointerId);
    }

    move(event) {
        if (!this.held) {
            this.tip.show(this, event.offsetX, event.offsetY);
            return;
        }
        const moved = event.offsetX - this.held.x;
        const [from, to] = this.held.window;
        if (this.held.pan) {
            const by = (-moved / this.width) * (to - from);
            this.setWindow(from + by, to + by);
            return;
        }
        this.tip.hide();
        this.select.hidden = Math.abs(moved) < 4;
        this.select.style.left = `${Math.max(this.gutter, Math.min(event.offsetX, this.held.x))}px`;
        this.select.style.width = `${Math.abs(moved)}px`;
    }

    release(event) {
        const held = this.held;
        this.held = null;
        this.select.hidden = true;
        if (!held || held.pan) return;
        if (Math.abs(event.offsetX - held.x) < 4) this.tip.show(this, event.offsetX, event.offsetY);
        else this.setWindow(...[this.time(held.x), this.time(event.offsetX)].sort((a, b) => a - b));
    }

    key(event) {
        const does = {
            ArrowLeft: () => this.pan(-0.1),
            ArrowRight: () => this.pan(0.1),
            "+": () => this.zoom(0.5),
            "=": () => this.zoom(0.5),
            "-": () => this.zoom(2),
            0: () => this.follow(0),
            Escape: () => this.tip.hide(),
            ArrowUp: () => this.tip.step(this, -1),
            ArrowDown: () => this.tip.step(this, 1),
        }[event.key];
        if (!does || event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        does();
    }
}
