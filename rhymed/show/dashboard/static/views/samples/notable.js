// The samples of a saved page: some that were selected by fixed rules, each with its prompt and why it is here.

import { SAVED } from "../../lib/api.js";
import { empty, fill, h } from "../../lib/dom.js";
import { promptText, readText, rowColumns } from "./details.js";
import { fullResponse } from "./response.js";

const NO_EPOCHS = { epochs: [] }; // the other responses to the prompt are not in the page

export class Notable {
    constructor(host, state) {
        const { samples } = SAVED;
        const rules =
            "Selected by fixed rules: extremes of reward and length, the prompts that changed most, the most drafted, the first and last dropped, then the next best, worst and longest. “rhymed view” shows all samples.";
        const draw = () =>
            fill(
                host,
                samples.length
                    ? h("p", { class: "muted" }, rules)
                    : empty("No samples", "The run's folder has no samples that could be read."),
                samples.map(({ why, sample }) => notable(why, sample, state.run?.folder ?? "")),
            );
        state.on("run", draw);
    }
}

function notable(why, sample, run) {
    return h(
        "section",
        { class: "notable", "aria-label": why },
        h("h2", {}, why),
        promptText(sample.prompt),
        readText(sample),
        rowColumns(sample),
        fullResponse(sample, NO_EPOCHS, run),
    );
}
