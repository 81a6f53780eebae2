// A prompt's responses as a table: one column per epoch, one row per response.

import { h } from "../../lib/dom.js";
import { number, percent, stepName, whole } from "../../lib/format.js";
import { link } from "../../lib/route.js";
import { hinted } from "../../lib/scroll.js";
import { epochName, finish, reward } from "./response.js";

/** `indices`: of the responses shown; `query`: the part of the address that links keep. */
export function matrix(prompt, epochs, indices, query) {
    const cells = (index) =>
        epochs.map((epoch) =>
            card(
                prompt,
                epoch.samples.find((sample) => sample.index === index),
                index,
                query,
            ),
        );
    const table = h(
        "div",
        {
            class: "matrix",
            role: "table",
            "aria-label": "Responses by epoch",
            style: { "--columns": epochs.length },
        },
        h(
            "div",
            { class: "matrix-row head", role: "row" },
            epochs.map((epoch) => h("div", { role: "columnheader" }, title(epoch))),
        ),
        indices.map((index) => h("div", { class: "matrix-row", role: "row" }, cells(index))),
    );
    return hinted(h("div", { class: "scroll" }, table));
}

function title(epoch) {
    const rewards = epoch.samples.map((sample) => sample.reward).filter((reward) => reward != null);
    const mean = rewards.reduce((a, b) => a + b, 0) / (rewards.length || 1);
    const lengths =
        epoch.samples.reduce((sum, sample) => sum + (sample.length ?? 0), 0) / (epoch.samples.length || 1);
    const name = epochName(epoch);
    return [
        h("strong", {}, name),
        h(
            "span",
            { class: "muted" },
            `${name === stepName(epoch.step) ? "" : `${stepName(epoch.step)}, `}${rewards.length ? `reward ${number(mean)}, ` : ""}${number(lengths)} tokens`,
        ),
    ];
}

function card(prompt, sample, index, query) {
    if (!sample)
        return h(
            "div",
            { class: "card absent", role: "cell" },
            h("span", { class: "muted" }, `no response ${index + 1} in this epoch`),
        );
    const path = [prompt.id, sample.step, sample.index];
    return h(
        "div",
        { class: "card", role: "cell" },
        h(
            "a",
            {
                class: "card-link",
                href: link("samples", path, query),
                "aria-label": `Response ${index + 1}, ${stepName(sample.step)}`,
                title: sample.id,
            },
            h(
                "div",
                { class: "card-head" },
                h("b", {}, `#${index + 1}`),
                reward(sample),
                h("span", {}, `${whole(sample.length)} tokens`),
                sample.drafted != null &&
                    sample.length > 0 &&
                    h(
                        "span",
                        { class: sample.drafted ? "drafted" : "" },
                        `${percent(sample.drafted / sample.length)} drafted`,
                    ),
                finish(sample),
            ),
            h(
                "div",
                { class: "card-text", dir: "auto" },
                sample.text ??
                    h(
                        "span",
                        { class: "muted" },
                        sample.reason || (prompt.missing ? "" : "Its text was not kept."),
                    ),
            ),
        ),
    );
}
