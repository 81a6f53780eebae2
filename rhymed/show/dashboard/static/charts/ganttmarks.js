// What is drawn over the Gantt's rows: the time axis, and events (steps, workers that joined, left or were lost).
// Pure drawing: a pen, the Gantt's geometry and the timeline in, pixels out.

import { firstAfter } from "./timeline.js";
import { clock } from "../lib/format.js";
import { colour } from "../lib/theme.js";

const HEAD_END = 32; // where lines over the rows start
const NICE_S = [
    0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400,
];
const ROOM = 12; // pixels per mark of a kind; with less, there are only ticks in the head, and no marks in rows
const TICK = 3; // pixels between ticks in the head
const ACROSS = { trained: "--accent", evaluated: "--c2", begun: "--muted", finished: "--muted" };
const SIGNS = {
    lost: ["✕", "--bad"],
    left: ["◁", "--muted"],
    joined: ["▷", "--good"],
    rests: ["z", "--c2"],
};

export function axis(pen, gantt, from, to) {
    const step = NICE_S.find((nice) => (to - from) / nice < gantt.width / 90) ?? NICE_S[NICE_S.length - 1];
    pen.fillStyle = colour("--muted");
    pen.textBaseline = "top";
    pen.textAlign = "center";
    for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
        const x = gantt.x(time, from, to);
        if (x < gantt.gutter + 24 || x > gantt.gutter + gantt.width - 24) continue;
        const tenths = Math.round(time * 10);
        pen.fillText(step < 1 ? `${clock(tenths / 10)}.${tenths % 10}` : clock(time), x, 2);
        pen.fillRect(Math.round(x), 15, 1, 4);
    }
}

export function marks(pen, gantt, timeline, from, to, first, last) {
    const seen = timeline.events.filter((event) => event.t >= from && event.t <= to);
    const many = {};
    for (const event of seen) many[roomKey(event)] = (many[roomKey(event)] ?? 0) + 1;
    const rows = new Map(gantt.rows.map((worker, i) => [worker.name, i]));
    const free = {}; // x from which there is room: by kind, and for labels
    for (const event of seen) {
        const x = gantt.x(event.event === "lost" ? heard(timeline, event) : event.t, from, to);
        const crowded = many[roomKey(event)] * ROOM > gantt.width;
        if (isSign(event)) sign(pen, gantt, event, x, rows.get(event.worker), first, last, free);
        else across(pen, gantt, event, x, crowded, free);
    }
}

function isSign(event) {
    return event.event in SIGNS && event.worker != null;
}

/** Marks with the same key compete for room: all of a kind, or all of a kind in a worker's row. */
function roomKey(event) {
    return isSign(event) ? `${event.event} ${event.worker}` : event.event;
}

function across(pen, gantt, event, x, crowded, free) {
    pen.fillStyle = colour(ACROSS[event.event] ?? "--muted");
    const label =
        { trained: `v${event.step + 1}`, evaluated: `eval v${event.step}` }[event.event] ?? event.event;
    const wide = crowded ? 0 : pen.measureText(label).width + 8;
    const labelled = !crowded && x >= (free.labels ?? 0) && x + wide <= gantt.gutter + gantt.width;
    if (!labelled && x < (free[event.event] ?? 0)) return;
    free[event.event] = x + TICK;
    const top = labelled ? HEAD_END - 12 : HEAD_END - 3; // a tick without a label stays below the labels
    pen.fillRect(Math.round(x), top, 1, HEAD_END - top);
    if (!crowded) {
        pen.globalAlpha = 0.45;
        pen.fillRect(Math.round(x), HEAD_END, 1, gantt.canvas.clientHeight);
        pen.globalAlpha = 1;
    }
    if (!labelled) return;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.fillText(label, x + 3, 24);
    free.labels = x + wide;
}

/** When a lost worker was last heard; the loss may have been noticed only when it joined again. */
function heard(timeline, event) {
    const spans = timeline.workers.get(event.worker)?.spans ?? [];
    return spans[firstAfter(spans, event.t) - 1]?.t ?? event.t;
}

function sign(pen, gantt, event, x, row, first, last, free) {
    if (row == null || row < first || row >= last) return;
    const [text, ink] = SIGNS[event.event];
    const key = roomKey(event);
    if (x < (free[key] ?? 0)) return; // the first of its neighbours represents them
    free[key] = x + ROOM;
    const inside = Math.min(Math.max(x, gantt.gutter + 7), gantt.gutter + gantt.width - 7);
    const middle = gantt.top(row) + (gantt.height - (gantt.height > 10 ? 4 : 1)) / 2;
    pen.fillStyle = colour("--panel");
    pen.beginPath();
    pen.arc(inside, middle, Math.min(7, gantt.height / 2), 0, 7);
    pen.fill();
    pen.fillStyle = colour(ink);
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(text, inside, middle + 0.5);
}
