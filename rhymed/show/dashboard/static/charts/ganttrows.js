// The Gantt chart's rows: a worker's name and its bands. Pure drawing: a pen, the Gantt's geometry and the timeline in,
// pixels out.

import { colour } from "../lib/theme.js";
import { columns } from "./timeline.js";

const WAITING = new Set(["idle", "wait"]); // drawn faintly, so that work stands out

export function row(pen, gantt, timeline, index, from, to) {
    const worker = gantt.rows[index];
    const top = gantt.top(index);
    const tall = gantt.height - (gantt.height > 10 ? 4 : 1);
    bands(pen, gantt, timeline, worker.spans, { top, tall, from, to });
    if (gantt.height < 11 && index % 2) return; // no room for every name
    pen.fillStyle = colour(worker.gone?.event === "lost" ? "--bad" : "--ink");
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    const name = worker.name.split("@")[0];
    const text = worker.gone ? `${name} (${worker.gone.event})` : name;
    pen.fillText(fitted(pen, text, gantt.gutter - 8), 2, top + tall / 2);
}

/** Pixel by pixel: much faster than one rectangle per span, of which there may be a hundred thousand. */
function bands(pen, gantt, { names, activities }, spans, { top, tall, from, to }) {
    const ratio = devicePixelRatio || 1;
    const inks = names.map((name) => ink(activities[name], WAITING.has(name) ? 77 : 255));
    const count = names.length;
    const [wide, high] = [Math.floor(gantt.width * ratio), Math.round(tall * ratio)];
    const sums = columns(spans, count, from, to, wide);
    const image = pen.createImageData(wide, high);
    const pixels = new Uint32Array(image.data.buffer);
    for (let x = 0; x < wide; x++) {
        let sum = 0;
        for (let k = 0; k < count; k++) sum += sums[x * count + k];
        if (sum <= 0) continue;
        let [y, level] = [high, 0];
        for (let k = 0; k < count; k++) {
            level += sums[x * count + k];
            const end = Math.round(high * (1 - level / sum));
            while (y > end) pixels[--y * wide + x] = inks[k];
        }
    }
    pen.putImageData(image, Math.round(gantt.gutter * ratio), Math.round(top * ratio));
}

/** "#rrggbb" as a pixel: bytes red, green, blue, opacity; browsers run on little-endian machines. */
function ink(hex, opacity) {
    const number = parseInt(hex.slice(1), 16);
    return ((opacity << 24) | ((number & 0xff) << 16) | (number & 0xff00) | (number >> 16)) >>> 0;
}

function fitted(pen, text, room) {
    if (pen.measureText(text).width <= room) return text;
    let short = text;
    while (short.length > 1 && pen.measureText(`${short}…`).width > room) short = short.slice(0, -1);
    return `${short}…`;
}
