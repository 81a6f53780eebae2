// The head: the run, its key numbers, and notices. Owns only its texts.

import { fill, onFrame, h, setText, set } from "../lib/dom.js";
import { age, clock, eventText, number, percent, seconds, whole, withUnit } from "../lib/format.js";
import { hinted } from "../lib/scroll.js";
import { themeSwitch } from "../lib/theme.js";

const CONNECTION = {
    live: "live",
    lost: "connection lost",
    ended: "run ended",
    still: "not running",
    connecting: "connecting",
    saved: "saved page",
};

export class Head {
    constructor(host, notice, state) {
        this.state = state;
        this.notice = notice;
        this.name = h("h1", {}, "rhymed");
        this.badge = h("span", { class: "badge" });
        this.link = h("span", { class: "link", role: "status" });
        this.progress = h("progress", { max: 1, value: 0, "aria-label": "Steps trained" });
        this.facts = Object.fromEntries(FACTS.map(([key]) => [key, h("dd", { "data-fact": key }, "–")]));
        fill(
            host,
            h(
                "div",
                { class: "title" },
                this.name,
                this.badge,
                this.link,
                h("span", { class: "grow" }),
                themeSwitch(),
            ),
            hinted(
                h(
                    "dl",
                    { class: "facts" },
                    FACTS.map(([key, label]) =>
                        h(
                            "div",
                            { class: "fact" },
                            h("dt", {}, label),
                            this.facts[key],
                            key === "step" && this.progress,
                        ),
                    ),
                ),
            ),
        );
        this.draw = onFrame(() => this.paint());
        state.on("run queues steps connection", this.draw);
        setInterval(this.draw, 1000);
        this.draw();
    }

    paint() {
        const { run, queues, connection } = this.state;
        setText(this.name, run?.name ?? "rhymed");
        document.title = run ? `${run.name} – rhymed` : "rhymed";
        const state = condition(run, queues, connection);
        setText(this.badge, state);
        set(this.badge, { "data-state": state });
        setText(this.link, CONNECTION[connection]);
        set(this.link, { "data-connection": connection });
        const step = queues?.step ?? run?.step ?? 0;
        const ended = run?.state === "finished" ? step : null;
        const steps = queues?.steps || run?.steps || ended; // null: not known
        this.progress.max = steps ?? 1;
        this.progress.value = steps ? step : 0;
        for (const [key, , value] of FACTS)
            setText(this.facts[key], value(this.state, { step, steps }) ?? "–");
        this.facts.left.parentElement.hidden = this.state.queues == null; // what has ended has no time left
        set(this.facts.troubles, { class: queues?.troubles?.length ? "bad" : null });
        this.warn(queues?.troubles ?? []);
    }

    warn(troubles) {
        const { connection, since, problem } = this.state;
        const lines = [...new Set([...troubles, ...Object.values(this.state.problems)])];
        if (connection === "lost") lines.unshift(problem || lostSentence(this.state.run, since));
        if (connection === "ended") lines.unshift(overSentence(this.state));
        if (lines.join("\n") === this.shownNotice) return;
        this.shownNotice = lines.join("\n");
        this.notice.hidden = lines.length === 0;
        set(this.notice, {
            "data-tone": connection === "lost" || lines.length > (connection === "ended") ? "bad" : "calm",
        });
        fill(
            this.notice,
            h(
                "ul",
                {},
                lines.map((line) => h("li", {}, line)),
            ),
        );
    }
}

/** key, label, value. */
const FACTS = [
    ["step", "Step", (state, { step, steps }) => `${whole(step)} / ${whole(steps)}`],
    [
        "epoch",
        "Epoch",
        (state) =>
            state.newest("training/epoch") == null ? null : whole(state.newest("training/epoch") + 1),
    ],
    ["elapsed", "Elapsed", (state) => age((state.queues ?? state.run)?.elapsed_s)],
    ["left", "Time left", (state) => left(state.queues?.eta_s)],
    ["speed", "Tokens/s", (state) => number(speed(state))],
    ["reward", "Reward", (state) => number(state.newest("reward/mean"))],
    ["accept", "Accept length", (state) => withUnit(state.newest("rollout/spec_accept_length"), "tokens")],
    ["bubble", "Bubbles", (state) => percent(state.newest("rollout/bubble_ratio"))],
    ["time", "Time per step", (state) => seconds(state.newest("timing_s/step"))],
    ["workers", "Workers", (state) => (state.queues ? whole(state.queues.workers.length) : null)],
    ["troubles", "Problems", (state) => (state.queues ? whole(state.queues.troubles?.length ?? 0) : null)],
];

function lostSentence(run, since) {
    if (!run) return "The dashboard's server does not answer. The page tries again by itself.";
    return `Connection lost at ${clock(since / 1000)}: the page shows the state of that moment and tries again by itself. If the run has ended, “rhymed view ${run.folder}” opens it again.`;
}

function overSentence({ run, since, timeline }) {
    const last = timeline.events.findLast((event) => event.event === "finished" || event.event === "begun");
    const start =
        run.state === "finished"
            ? "The run has finished"
            : last?.event === "finished"
              ? `The ${eventText(last)}`
              : "The run has stopped";
    return `${start} (${clock(since / 1000)}). The page keeps what it has loaded; “rhymed view ${run.folder}” shows the rest. If the run continues, so does this page.`;
}

/** Rounded, so that the text does not change with every look. */
function left(eta) {
    if (eta == null) return null;
    return `about ${seconds(eta < 120 ? Math.max(5, 5 * Math.round(eta / 5)) : 60 * Math.round(eta / 60))}`;
}

/** Of all rollout workers now; of the newest step if the run is not alive. */
function speed(state) {
    const rates = (state.queues?.workers ?? [])
        .map((worker) => worker.stats?.["rollout/tokens_per_s"])
        .filter((rate) => rate != null);
    return rates.length ? rates.reduce((a, b) => a + b, 0) : state.newest("rollout/tokens_per_s");
}

function condition(run, queues, connection) {
    if (!run) return "…";
    if (connection === "lost" && run.state === "running") return "was running";
    if (queues?.paused && connection === "live") return "paused";
    return queues?.finished ? "finished" : run.state;
}
