// Every queue with its depth and the age of its oldest sample, and the states of the samples of the open steps. Owns its
// panel, which is shown only while the run is alive. Knows only the broker's newest snapshot.

import { fill, onFrame, h, panel } from "../../lib/dom.js";
import { age, plural, stepName, whole } from "../../lib/format.js";

const MOST = 6; // open steps shown: those trained next, and the last
/** state -> what its samples wait for, in the words of `rhymed queues`, and its colour. */
const QUEUES = {
    waiting: ["for a rollout worker", "--c8"],
    running: ["being generated", "--c1"],
    turned: ["for an environment worker", "--c7"],
    acting: ["being answered by their environment", "--c4"],
    generated: ["for a reward worker", "--c6"],
    scoring: ["being scored", "--c5"],
    scored: ["for the rest of the step", "--c2"],
    training: ["with the trainer", "--c3"],
};
const OF_ENVIRONMENTS = ["turned", "acting"]; // other runs have no such samples
const FINAL = { trained: "--c3", filtered: "--muted", dropped: "--bad" }; // states that no sample leaves

export class QueuePanel {
    constructor(state) {
        this.state = state;
        this.queues = h("ul", { class: "queues", "aria-label": "Queues" });
        this.steps = h("ul", { class: "open-steps", "aria-label": "Open steps" });
        this.element = panel("Queues", "now", this.queues, this.steps);
        this.element.hidden = true;
        this.draw = onFrame(() => this.paint());
        state.on("queues connection", this.draw);
        this.draw();
    }

    paint() {
        const { queues, connection } = this.state;
        this.element.hidden = !queues || queues.finished || connection === "lost";
        if (this.element.hidden) return;
        fill(
            this.queues,
            Object.entries(QUEUES)
                .filter(([name]) => !OF_ENVIRONMENTS.includes(name) || hasEnvironments(queues))
                .map(([name, [purpose, colour]]) => queue(name, purpose, colour, queues)),
        );
        const open = queues.open_steps.slice().sort((a, b) => a.step - b.step);
        const shown = open.filter((_, at) => at < MOST - 1 || at === open.length - 1); // an evaluation is the last
        const left = open.length - shown.length;
        fill(
            this.steps,
            shown.map(openStep),
            left > 0 && h("li", { class: "muted" }, `and ${whole(left)} more step${left === 1 ? "" : "s"}`),
            open.length === 0 && h("li", { class: "muted" }, "no step is open"),
        );
    }
}

function hasEnvironments({ queues, workers }) {
    return (
        OF_ENVIRONMENTS.some((name) => queues[name] > 0) || workers.some(({ role }) => role === "environment")
    );
}

function queue(name, purpose, colour, { queues, oldest_s: oldest }) {
    const depth = queues[name] ?? 0;
    return h(
        "li",
        { "data-queue": name, class: depth ? "" : "none-there" },
        h(
            "span",
            {},
            h("i", {
                class: "swatch",
                style: { "background-color": `var(${colour})` },
                "aria-hidden": "true",
            }),
            ` ${name}`,
        ),
        h("strong", {}, whole(depth)),
        h("span", { class: "muted" }, purpose),
        h("span", { class: "muted" }, oldest[name] == null ? "" : `oldest ${age(oldest[name])}`),
    );
}

function openStep({ step, states, groups, groups_ready: ready, refilled = 0, open_s: open }) {
    const sum = Object.values(states).reduce((a, b) => a + b, 0);
    const replaced = refilled ? `, ${whole(refilled)} replaced` : "";
    const there = [...Object.keys(QUEUES), ...Object.keys(FINAL)].filter((name) => states[name] > 0);
    const part = (name) =>
        h("i", {
            style: {
                width: `${(100 * states[name]) / sum}%`,
                "background-color": `var(${QUEUES[name]?.[1] ?? FINAL[name]})`,
            },
        });
    return h(
        "li",
        { "data-step": step },
        h("b", {}, stepName(step)),
        h("span", { class: "stack", "aria-hidden": "true" }, there.map(part)),
        h(
            "span",
            { class: "share-text" },
            `${whole(ready)} of ${plural(groups, "group")} ready${replaced}, open for ${age(open)}: ${there.map((name) => `${whole(states[name])} ${name}`).join(", ")}`,
        ),
    );
}
