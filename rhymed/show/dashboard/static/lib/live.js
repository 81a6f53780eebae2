// The connection: the initial load, then server-sent events. Owns whether the page is live, lost or ended. Invariant: after a
// lost connection everything missed is fetched before the page is "live" again; a run is over only if the server said so.

import * as api from "./api.js";

const RETRY_MS = 3_000;
const QUIET_MS = 20_000; // without an event, the server is asked whether it is alive
const OVERLAP_S = 10; // of the timeline, fetched again: rows of several workers arrive out of order
const POLL_MS = 10_000; // between checks whether a run that is not alive continues

export class Live {
    constructor(state) {
        this.state = state;
        this.source = null;
        this.heard = Date.now();
    }

    async start() {
        if (api.SAVED) return this.keep();
        setInterval(() => this.poll(), POLL_MS);
        await this.open();
    }

    async open() {
        try {
            await this.load();
        } catch (error) {
            this.lost(error);
            return;
        }
        if (this.state.run.state === "running") this.listen();
        else this.state.connected(this.state.connection === "ended" ? "ended" : "still");
    }

    /** A saved page has everything, and nothing changes. */
    async keep() {
        Object.assign(this.state.problems, api.SAVED.problems);
        await this.load();
        this.state.connected("saved");
    }

    async load() {
        const state = this.state;
        const before = state.run;
        const run = await api.run();
        if (before && (before.started !== run.started || before.name !== run.name)) state.clear();
        this.missing(run);
        state.put("run", run);
        await Promise.all([
            this.part(
                "queues",
                api.queues().then((queues) => state.put("queues", queues)),
            ),
            this.part(
                "steps",
                api.steps().then((steps) => state.addSteps(steps)),
            ),
            this.part(
                "timeline",
                api.timeline(this.known).then((timeline) => state.addTimeline(timeline)),
            ),
        ]);
        this.slow();
    }

    /** The time up to which the timeline is complete. */
    get known() {
        return Math.max(0, this.state.timeline.newest - OVERLAP_S);
    }

    /** Files that the run's folder lacks. */
    missing({ missing }) {
        if (missing) this.state.problems.run = missing;
        else delete this.state.problems.run;
    }

    /** A part that the server cannot send becomes a notice; the others are shown. Throws if the server does not answer. */
    async part(name, asked) {
        try {
            await asked;
            delete this.state.problems[name];
        } catch (error) {
            if (!error.status) throw error;
            this.state.problems[name] = error.message;
        }
    }

    listen() {
        this.source?.close();
        const source = new EventSource(`events?after=${this.state.lastStep}&since=${this.known}`);
        this.source = source;
        source.onopen = () => this.opened();
        source.onerror = () => this.broken(source);
        const on = (name, work) =>
            source.addEventListener(name, (event) => {
                this.heard = Date.now();
                work(JSON.parse(event.data));
            });
        on("queues", (queues) => this.state.put("queues", queues));
        on("steps", (steps) => {
            this.state.addSteps(steps);
            if (this.state.steps.length) delete this.state.problems.run;
            this.slow();
        });
        on("timeline", (timeline) => this.state.addTimeline(timeline));
        on("end", (run) => this.end(run));
    }

    async opened() {
        this.heard = Date.now();
        if (this.state.connection === "lost") {
            try {
                await this.load();
            } catch (error) {
                this.lost(error);
                return;
            }
        }
        this.state.connected("live");
    }

    broken(source) {
        if (source !== this.source) return;
        source.close();
        this.source = null;
        this.lost();
    }

    lost(error = null) {
        this.state.problem = error?.status ? error.message : "";
        this.state.connected("lost");
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.open(), RETRY_MS);
    }

    /** The server ends with its run, or stays and sends the rest. */
    async end(run) {
        this.source?.close();
        this.source = null;
        this.state.put("run", run);
        await this.load().catch(() => this.state.put("queues", null));
        this.state.connected("ended");
    }

    /** Parts that are expensive for the server and change slowly. */
    slow() {
        if (this.asking || (document.hidden && !api.SAVED)) return;
        this.asking = Promise.allSettled([
            this.part(
                "lengths",
                api.lengths().then((lengths) => this.state.put("lengths", lengths)),
            ),
            this.part(
                "rewards",
                api.rewards().then((rewards) => this.state.put("rewards", rewards)),
            ),
            this.part(
                "store",
                api.store().then((store) => this.state.put("store", store)),
            ),
        ]).finally(() => {
            this.asking = null;
            this.state.notify("connection");
        });
    }

    async poll() {
        const { connection } = this.state;
        if (connection === "live") {
            if (Date.now() - this.heard < QUIET_MS) return;
            await api.queues().then(
                () => (this.heard = Date.now()),
                () => this.source && this.broken(this.source),
            );
        } else if ((connection === "still" || connection === "ended") && !document.hidden) {
            const run = await api.run().catch(() => null);
            if (run && run.state !== this.state.run.state) await this.open();
        }
    }
}
