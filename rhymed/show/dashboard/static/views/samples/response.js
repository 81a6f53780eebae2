// One response in full, and the parts that it shares with the table of responses. A row of /api/prompts/<id> is called a
// sample here.

import { copyable } from "../../lib/copy.js";
import { h } from "../../lib/dom.js";
import {
    EVALUATION,
    epochName as epochText,
    number,
    plural,
    sampleId,
    stepName,
    whole,
} from "../../lib/format.js";
import { draftedSentence, responseText } from "../../lib/pieces.js";
import { environmentSentence, sessionFacts, turnsText } from "./turns.js";

/** `content`: {pieces, note} to be shown instead of the accepted drafts. */
export function fullResponse(sample, prompt, run, content = null) {
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
            parts(sample),
            advantage(sample, epoch),
            h("span", {}, `${whole(sample.length)} tokens`),
            sessionFacts(sample),
            finish(sample),
            sample.state && h("span", { class: "muted" }, sample.state),
        ),
        h(
            "p",
            { class: "sample-id" },
            copyable(
                sampleId(sample.id),
                `rhymed logs ${run} --sample=${sampleId(sample.id)} shows its history; ids count steps and responses from 0`,
            ),
        ),
        h("p", { class: "drafting" }, content?.note ?? draftedSentence(sample)),
        sample.session && h("p", { class: "drafting" }, environmentSentence(sample)),
        sample.missing && h("p", { class: "note" }, sample.missing),
        (sample.pieces?.length > 0 || !sample.missing) &&
            responseBody(
                sample,
                content?.pieces ?? sample.pieces ?? [],
                `${name}, text of response ${sample.index + 1}`,
            ),
        h("footer", { class: "muted" }, versions, sample.reason && `; ${sample.reason}`),
    );
}

function responseBody(sample, pieces, name) {
    return sample.runs?.length ? turnsText(sample, pieces, name) : responseText(pieces, name);
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

/** What each scorer gave, where the reward has parts. */
export function parts(sample) {
    const given = Object.entries(sample.parts ?? {});
    if (!given.length) return null;
    const words = given.map(([name, value]) => `${name} ${number(value)}`).join(" · ");
    return h("span", { class: "parts muted", title: "what each scorer gave, before its weight" }, words);
}

/** How its reward differs from the mean of its group: what an algorithm with groups learns from, before scaling. */
function advantage(sample, epoch) {
    const rewards = (epoch?.samples ?? []).map((row) => row.reward).filter((reward) => reward != null);
    if (sample.reward == null || rewards.length < 2) return null;
    const by = sample.reward - rewards.reduce((a, b) => a + b, 0) / rewards.length;
    const words = rewards.every((reward) => reward === rewards[0])
        ? "flat group"
        : `${number(Math.abs(by))} ${by < 0 ? "below" : "above"} its group`;
    return h("span", { class: "muted", title: "reward minus the mean reward of the group" }, words);
}

export function finish(sample) {
    const limit = sample.session ? "cut at the limit of length or turns" : "cut at the length limit";
    const words = { length: limit, abort: "aborted" }[sample.finish_reason];
    return words && h("span", { class: "cut" }, words);
}
