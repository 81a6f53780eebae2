// One response in full, and the parts that it shares with the table of responses. A row of /api/prompts/<id> is called a
// sample here.

import { copyable } from "../../lib/copy.js";
import { h } from "../../lib/dom.js";
import { EVALUATION, epochName as epochText, number, plural, stepName, whole } from "../../lib/format.js";
import { draftedSentence, responseText } from "../../lib/pieces.js";

export function fullResponse(sample, prompt, run) {
    const epoch = prompt.epochs.find((epoch) => epoch.step === sample.step);
    const versions = (sample.versions ?? [])
        .map(([version, count]) => `version ${version}: ${plural(count, "token")}`)
        .join(", ");
    const name = epoch ? epochName(epoch) : stepName(sample.step);
    return h(
        "article",
        {
            class: "panel full",
            "data-step": sample.step,
            "aria-label": `${name}, response ${sample.index + 1}`,
        },
        h(
            "header",
            {},
            h("h3", {}, name),
            name !== stepName(sample.step) && h("span", { class: "muted" }, stepName(sample.step)),
            reward(sample),
            h("span", {}, `${whole(sample.length)} tokens`),
            finish(sample),
            sample.state && h("span", { class: "muted" }, sample.state),
        ),
        h(
            "p",
            { class: "sample-id" },
            copyable(
                sample.id,
                `rhymed logs ${run} --sample=${sample.id} shows its history; ids count steps and responses from 0`,
            ),
        ),
        h("p", { class: "drafting" }, draftedSentence(sample)),
        sample.missing && h("p", { class: "note" }, sample.missing),
        (sample.pieces?.length > 0 || !sample.missing) &&
            responseText(sample.pieces ?? [], `${name}, text of response ${sample.index + 1}`),
        h("footer", { class: "muted" }, versions, sample.reason && `; ${sample.reason}`),
    );
}

export function promptText(text) {
    if (text == null) return h("p", { class: "muted" }, "The prompt's row is not in the store.");
    return h(
        "details",
        { class: "panel prompt", open: true },
        h("summary", {}, "Prompt"),
        responseText([{ text, drafted: null }], "Text of the prompt"),
    );
}

export function epochName(epoch) {
    if (epoch.step >= 0 && epoch.step < EVALUATION && epoch.epoch != null) return epochText(epoch.epoch);
    return epoch.name ?? stepName(epoch.step);
}

export function reward(sample) {
    if (sample.reward == null) return h("span", { class: "reward none-yet" }, "no reward");
    const share = Math.max(0, Math.min(1, sample.reward));
    return h(
        "span",
        { class: "reward" },
        h("i", { class: "gauge", "aria-hidden": "true" }, h("i", { style: { width: `${share * 100}%` } })),
        `reward ${number(sample.reward)}`,
    );
}

export function finish(sample) {
    const words = { length: "cut at the length limit", abort: "aborted" }[sample.finish_reason];
    return words && h("span", { class: "cut" }, words);
}
