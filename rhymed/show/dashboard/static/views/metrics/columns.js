// Metrics as columns: over steps, over time, or with the epochs overlaid. Pure: rows of metrics.jsonl in, columns out.

import { smoothed } from "../../charts/series.js";
import { epochName, unit } from "../../lib/format.js";

export const COLOURS = 8; // that curves can have

/** {xs, of(name): values}; a metric of an evaluation is placed at its policy version. */
export function table({ steps, evaluations }, by) {
    const rows = new Map(); // x -> merged row
    const begin = Math.min(...[steps[0], evaluations[0]].map((row) => row?.time ?? Infinity));
    const place = (row, x) => rows.set(x, { ...row, ...(rows.get(x) ?? {}) });
    for (const row of steps) place(row, by === "time" ? (row.time - begin) / 3600 : row.step + 1);
    for (const row of evaluations) place(row, by === "time" ? (row.time - begin) / 3600 : row.step);
    const xs = [...rows.keys()].filter(Number.isFinite).sort((a, b) => a - b);
    return { xs, of: (name) => xs.map((x) => rows.get(x)[name] ?? null) };
}

export function curve(name, values, i, smooth) {
    return {
        label: name,
        values: smooth ? smoothed(values) : values,
        colour: `--c${(i % COLOURS) + 1}`,
        unit: unit(name),
    };
}

/** One curve per epoch over the steps within it, of the newest epochs; the newest one is the thickest. */
export function overlaid(steps, name, smooth) {
    const groups = new Map();
    for (const row of steps) {
        const epoch = row["training/epoch"];
        if (epoch != null) groups.set(epoch, [...(groups.get(epoch) ?? []), row[name] ?? null]);
    }
    const shown = [...groups].slice(-COLOURS);
    const longest = Math.max(0, ...shown.map(([, values]) => values.length));
    const xs = Array.from({ length: longest }, (_, i) => i + 1);
    const padded = (values) => xs.map((x) => values[x - 1] ?? null);
    return [
        xs,
        shown.map(([epoch, values], i) => ({
            ...curve(name, padded(values), i, smooth),
            label: epochName(epoch),
            width: i === shown.length - 1 ? 2.5 : 1.5,
        })),
    ];
}

/** Comma-separated values with a head line; `first` names the x. */
export function csv({ xs, of }, names, first) {
    const columns = names.map(of);
    const lines = xs.map((x, i) => [x, ...columns.map((column) => column[i] ?? "")].join(","));
    return [[first, ...names].map(cell).join(","), ...lines, ""].join("\n");
}

/** Text in a cell of a spreadsheet, which is neither two cells nor a formula. */
function cell(text) {
    const plain = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}

/** The names in groups of one unit each, in order of first appearance: [unit, names]. */
export function byUnit(names) {
    const groups = new Map();
    for (const name of names) groups.set(unit(name), [...(groups.get(unit(name)) ?? []), name]);
    return [...groups];
}
