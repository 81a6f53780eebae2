// The table of epochs: one row per epoch, with bars that compare them.

import { h, tableOf } from "../../lib/dom.js";
import { number, percent, seconds, whole } from "../../lib/format.js";

const MOST = 200; // rows: the newest epochs

const COLUMNS = [
    ["Epoch", "epoch", (value) => whole(value + 1)],
    ["Steps", "steps", (value) => whole(value)],
    ["Reward", "reward", number, true],
    ["Length, tokens", "response_length", number, true],
    ["Accept length, tokens", "accept_length", number, true],
    ["Accept rate", "accept_rate", percent, true],
    ["Net speed-up, ×", "net_speedup", number, true],
    ["Rollout per step", "rollout_s", seconds, true],
    ["Tokens/s", "tokens_per_s", number, true],
];

export function epochTable(epochs) {
    if (!epochs.length)
        return h(
            "p",
            { class: "none" },
            "Each epoch gets a row with its first trained step: compare reward, length, acceptance and time.",
        );
    const best = (key) => Math.max(...epochs.map((epoch) => epoch[key] ?? 0));
    const tops = Object.fromEntries(COLUMNS.map(([, key]) => [key, best(key)]));
    const row = (epoch) =>
        h(
            "tr",
            {},
            COLUMNS.map(([, key, format, bar]) => h("td", {}, cell(epoch[key], format, bar && tops[key]))),
        );
    const titles = COLUMNS.map(([title]) => title);
    return tableOf(titles, epochs.slice(-MOST).map(row));
}

function cell(value, format, top) {
    const text = h("span", {}, format(value));
    return top > 0 && value > 0
        ? [text, h("i", { class: "bar-in-cell", style: { width: `${(100 * value) / top}%` } })]
        : text;
}
