// The second tab: the workers' timeline, their present state, and events. Owns the table; the Gantt chart is gantt.js.

import { SAVED } from "../lib/api.js";
import { empty, fill, onFrame, h, tableOf } from "../lib/dom.js";
import { age, clock, eventText, number, percent, seconds, whole } from "../lib/format.js";
import { hinted } from "../lib/scroll.js";
import { Gantt } from "../charts/gantt.js";
import { describe, series } from "../charts/usage.js";

const SILENT_S = 5; // without a heartbeat: marked in the table
const RECENT = SAVED ? 300 : 30; // events in the list
const MOST = 200; // rows of the table

export class Workers {
    constructor(host, state) {
        this.state = state;
        this.host = host;
        const gantt = h("div", {});
        this.table = hinted(h("div", { class: "scroll" }));
        this.events = h("ol", { class: "events" });
        this.every = h("input", { type: "checkbox", onchange: () => this.paintEvents() });
        fill(
            host,
            h(
                "section",
                { class: "panel gantt-panel", "aria-labelledby": "gantt-title" },
                h("h3", { id: "gantt-title" }, "Worker timeline"),
                gantt,
            ),
            h(
                "section",
                { class: "panel", "aria-labelledby": "workers-title" },
                h("h3", { id: "workers-title" }, "Workers"),
                this.table,
            ),
            h(
                "section",
                { class: "panel", "aria-labelledby": "events-title" },
                h(
                    "div",
                    { class: "bar" },
                    h("h3", { id: "events-title" }, "Events"),
                    h("label", { class: "choice" }, this.every, "include every step"),
                ),
                this.events,
            ),
        );
        this.gantt = new Gantt(gantt, () => state.timeline);
        this.draw = onFrame(() => this.paint());
        state.on("queues timeline", this.draw);
        state.on("timeline", () => this.gantt.draw());
        this.draw();
    }

    show() {
        this.gantt.draw();
        this.draw();
    }

    paint() {
        if (this.host.hidden) return;
        const now = new Map((this.state.queues?.workers ?? []).map((row) => [row.worker, row]));
        const rows = [...this.state.timeline.rows()];
        for (const name of now.keys())
            if (!rows.some((worker) => worker.name === name))
                rows.push({
                    name,
                    role: now.get(name).role,
                    host: now.get(name).host,
                    spans: [],
                    sums: {},
                    gone: null,
                });
        if (!rows.length)
            fill(this.table, empty("No worker yet", "Each worker gets a row when it joins the run."));
        else
            fill(
                this.table,
                tableOf(
                    HEADS,
                    rows.slice(0, MOST).map((worker) => this.row(worker, now.get(worker.name))),
                    { class: "workers" },
                ),
                rows.length > MOST
                    ? h(
                          "p",
                          { class: "muted hint" },
                          `The first ${MOST} of ${whole(rows.length)} workers; the timeline above shows all.`,
                      )
                    : "",
            );
        this.paintEvents();
    }

    row(worker, now) {
        const { sums } = worker;
        const sum = Object.values(sums).reduce((a, b) => a + b, 0);
        const names = this.state.timeline.names.filter((name) => sums[name] > 0);
        const [state, tone] = condition(worker, now, this.state);
        return h(
            "tr",
            { "data-worker": worker.name },
            h(
                "th",
                { scope: "row" },
                worker.name,
                h("span", { class: "muted" }, ` ${worker.host || now?.host || ""}`),
            ),
            h("td", {}, worker.role),
            h("td", { class: tone }, state),
            h("td", {}, now?.version >= 0 ? `v${now.version}` : "–"),
            h("td", {}, now ? `${whole(now.held ?? now.holding?.length ?? 0)} / ${whole(now.slots)}` : "–"),
            h("td", {}, number(now?.stats?.["rollout/tokens_per_s"])),
            h("td", {}, number(now?.accept_length || null)),
            h("td", { class: now?.silent_s > SILENT_S ? "bad" : "" }, now ? `${age(now.silent_s)} ago` : "–"),
            usageCell(now?.usage, worker.spans),
            h(
                "td",
                { class: "shares" },
                sum > 0
                    ? [
                          h(
                              "span",
                              { class: "stack", "aria-hidden": "true" },
                              names.map((name) =>
                                  h("i", {
                                      class: name === "idle" || name === "wait" ? "faint" : "",
                                      style: {
                                          width: `${(100 * sums[name]) / sum}%`,
                                          "background-color": this.state.timeline.activities[name],
                                      },
                                  }),
                              ),
                          ),
                          h(
                              "span",
                              { class: "share-text" },
                              names
                                  .slice()
                                  .sort((a, b) => sums[b] - sums[a])
                                  .slice(0, 3)
                                  .map((name) => `${name} ${percent(sums[name] / sum)}`)
                                  .join(", "),
                          ),
                      ]
                    : "–",
            ),
        );
    }

    paintEvents() {
        const events = this.state.timeline.events
            .filter((event) => this.every.checked || event.event !== "trained")
            .slice(-RECENT)
            .reverse();
        fill(
            this.events,
            events.length
                ? events.map((event) =>
                      h(
                          "li",
                          { class: event.event === "lost" ? "bad" : "" },
                          h("time", {}, clock(event.t)),
                          " ",
                          eventText(event),
                      ),
                  )
                : h(
                      "li",
                      { class: "muted" },
                      "Workers that join, leave or are lost appear here, and evaluations.",
                  ),
        );
    }
}

const HEADS = [
    "Worker",
    "Role",
    "Now",
    "Version",
    "Samples / slots",
    "Tokens/s",
    "Accept length",
    "Last heartbeat",
    "Uses",
    "Time so far",
];

function usageCell(usage, spans) {
    const { lines, title } = describe(usage);
    if (!lines.length) return h("td", {}, "–");
    return h(
        "td",
        { class: "usage", title },
        lines.map((line) => h("div", {}, line)),
        h("div", { class: "spark", "aria-hidden": "true" }, series(spans)),
    );
}

/** What a worker does, and the CSS class of that text. */
function condition(worker, now, state) {
    if (!now) {
        if (worker.gone)
            return [
                `${worker.gone.event} at ${clock(worker.gone.t)}`,
                worker.gone.event === "lost" ? "bad" : "muted",
            ];
        return [state.queues ? "not connected" : "not running", "muted"];
    }
    if (now.drained) return ["draining", "warn"];
    if (now.silent_s > SILENT_S) return [`silent for ${seconds(now.silent_s)}`, "bad"];
    return [now.phase || "joined", ""];
}
