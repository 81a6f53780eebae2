// What a worker uses of its machine, as text: now from its last heartbeat, and a small series from the timeline. Pure.

import { bytes, known, percent } from "../lib/format.js";

const BARS = "▁▂▃▄▅▆▇█";
const SHOWN = 20; // values of the series

/** Lines of text; none if the worker reports nothing. `title`: each GPU on a line of its own. */
export function describe(usage) {
    if (!usage) return { lines: [], title: "" };
    const lines = [`${usage.cpu.toFixed(1)} CPU, ${bytes(usage.memory)}`];
    const gpus = usage.gpus ?? [];
    if (gpus.length) lines.push(joined(gpus));
    return {
        lines,
        title: gpus.map((gpu) => `GPU ${gpu.index} ${gpu.kind ?? ""}: ${numbers(gpu)}`).join("\n"),
    };
}

/** The newest spans' utilization of GPUs, or processors in use, as bars: `▁▃▇█`. */
export function series(spans) {
    const newest = spans.slice(-SHOWN);
    const gpus = newest.some((span) => known(span.gpu));
    const values = newest.map((span) => (gpus ? span.gpu : span.cpu)).filter(known);
    const most = gpus ? 1 : Math.max(1, ...values);
    return values.map((value) => BARS[Math.min(7, Math.floor((8 * value) / most))]).join("");
}

/** `0.9 CPU, 2.1 GiB, GPU 91 %, 61 GiB, 64 °C`: the means of a span; empty if it has none. */
export function ofSpan(span) {
    const parts = [
        known(span?.cpu) && `${span.cpu.toFixed(1)} CPU`,
        known(span?.ram) && bytes(span.ram * 2 ** 30),
        known(span?.gpu) && `GPU ${percent(span.gpu)}`,
        known(span?.gpuRam) && bytes(span.gpuRam * 2 ** 30),
        known(span?.celsius) && `${span.celsius.toFixed(0)} °C`,
    ];
    return parts.filter(Boolean).join(", ");
}

/** Several GPUs: mean utilization, memory summed, the hottest. */
function joined(gpus) {
    const all = (name) => gpus.map((gpu) => gpu[name]).filter(known);
    const sum = (values) => (values.length ? values.reduce((a, b) => a + b, 0) : null);
    const shares = all("utilization");
    const together = {
        utilization: shares.length ? sum(shares) / shares.length : null,
        memory: sum(all("memory")),
        celsius: all("celsius").length ? Math.max(...all("celsius")) : null,
    };
    return `${gpus.length > 1 ? `${gpus.length} GPUs` : "GPU"} ${numbers(together)}`;
}

function numbers(gpu) {
    const parts = [
        known(gpu.utilization) && percent(gpu.utilization),
        known(gpu.memory) &&
            bytes(gpu.memory) + (known(gpu.memory_total) ? ` of ${bytes(gpu.memory_total)}` : ""),
        known(gpu.celsius) && `${gpu.celsius.toFixed(0)} °C`,
    ];
    return parts.filter(Boolean).join(", ") || "no numbers";
}
