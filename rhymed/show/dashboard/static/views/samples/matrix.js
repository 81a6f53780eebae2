// A prompt's responses as a table: one column per epoch, one row per response.

import { h } from "../../lib/dom.js";
import { number, percent, stepName, whole } from "../../lib/format.js";
import { link } from "../../lib/route.js";
import { absent, card, grid, meanReward } from "./grid.js";
import { epochName } from "./response.js";
import { sessionFacts } from "./turns.js";

/** `indices`: of the responses shown; `query`: the part of the address that links keep. */
export function matrix(prompt, epochs, indices, query) {
    const cell = (epoch, index) => {
        const sample = epoch.samples.find((sample) => sample.index === index);
        return sample ? response(prompt, sample, query) : absent(`no response ${index + 1} in this epoch`);
    };
    const rows = indices.map((index) => epochs.map((epoch) => cell(epoch, index)));
    return grid("Responses by epoch", epochs.map(head), rows);
}

function head(epoch) {
    const { samples } = epoch;
    const reward = meanReward(samples);
    const length = samples.reduce((sum, sample) => sum + (sample.length ?? 0), 0) / (samples.length || 1);
    const name = epochName(epoch);
    const step = stepName(epoch.step);
    const facts = [
        name !== step && step,
        reward != null && `reward ${number(reward)}`,
        `${number(length)} tokens`,
    ];
    return [name, facts.filter(Boolean).join(", ")];
}

function response(prompt, sample, query) {
    const { drafted } = sample;
    const length = sample.length - (sample.session?.environment_tokens ?? 0);
    const share =
        drafted != null &&
        length > 0 &&
        h("span", { class: drafted ? "drafted" : "" }, `${percent(drafted / length)} drafted`);
    return card(sample, {
        href: link("samples", [prompt.id, sample.step, sample.index], query),
        label: `Response ${sample.index + 1}, ${stepName(sample.step)}`,
        facts: [h("span", {}, `${whole(sample.length)} tokens`), share, ...sessionFacts(sample)],
        lacking: sample.reason || (prompt.missing ? "" : "Its text was not kept."),
    });
}
