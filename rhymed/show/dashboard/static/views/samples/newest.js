// The samples of a saved page: those of the newest step, below their prompts.

import { SAVED } from "../../lib/api.js";
import { empty, fill, h } from "../../lib/dom.js";
import { stepName } from "../../lib/format.js";
import { promptText, readText, rowColumns } from "./details.js";
import { fullResponse } from "./response.js";

const promptOf = (sample) => sample.id.split("/")[1];
const NO_EPOCHS = { epochs: [] }; // the other responses to the prompt are not in the page

export class Newest {
    constructor(host, state) {
        const { samples, of } = SAVED;
        const draw = () =>
            fill(
                host,
                samples.length
                    ? h("p", { class: "muted" }, described(samples, of))
                    : empty("No samples", "The run's folder has no samples that could be read."),
                samples.map((sample, place) => section(sample, samples[place - 1], state.run?.folder ?? "")),
            );
        state.on("run", draw);
    }
}

function described(samples, of) {
    const number = samples.length < of ? `${samples.length} of ${of} samples` : "All samples";
    return `${number} of the newest step, ${stepName(samples[0].step)}. “rhymed view” shows every sample of every step.`;
}

function section(sample, before, run) {
    const prompt = promptOf(sample);
    return h(
        "section",
        { class: "newest" },
        (!before || promptOf(before) !== prompt) && [
            h("h2", {}, `Prompt ${prompt}`),
            promptText(sample.prompt),
            rowColumns(sample),
        ],
        readText(sample),
        fullResponse(sample, NO_EPOCHS, run),
    );
}
