// The connection: asks once per second what is new. Owns whether the page is live, lost or ended. Invariant: after a lost
// connection everything is fetched again before the page is "live"; a run is over only if the server said so.

import * as api from "./api.js";

const ASK_MS = 1_000;
const RETRY_MS = 3_000; // while the server does not answer
const IDLE_MS = 10_000; // while the run is not alive: it may continue
const OPEN = ["live", "ended", "still"]; // the page has everything up to the last answer
const OVERLAP_S = 5; // of the timeline, fetched again: rows of several workers arrive out of order

export class Live {
    constructor(state) {
        this.state = state;
        document.addEventListener("visibilitychange", () => document.hidden || this.wake?.());
    }

    async start() {
        if (api.SAVED) {
            Object.assign(this.state.problems, api.SAVED.problems);
            await this.load();
            this.state.connected("saved");
            return;
        }
        for (;;) {
            let pause = ASK_MS;
            try {
                await (OPEN.includes(this.state.connection) ? this.look() : this.load());
                if (this.state.connection !== "live") pause = IDLE_MS;
            } catch (error) {
                this.state.problem = error.status ? error.message : "";
                if (this.state.connection !== "ended") this.state.connected("lost"); // a server ends with its run
                pause = RETRY_MS;
            }
            await new Promise((resolve) => {
                this.wake = resolve;
                setTimeout(resolve, pause);
            });
        }
    }

    /** Everything. */
    async load() {
        const state = this.state;
        const before = state.run;
        const run = await api.run();
        if (before && (before.started !== run.started || before.name !== run.name)) state.clear();
        state.serial = 0;
        state.put("run", run);
        await this.look();
        if (run.missing) state.problems.run = run.missing;
        this.slow();
    }

    /** What is new. */
    async look() {
        const state = this.state;
        const { over, queues, steps, timeline } = await api.news(
            state.serial,
            Math.max(0, state.timeline.newest - OVERLAP_S),
        );
        state.put("queues", queues);
        if (steps) {
            delete state.problems.run;
            state.addSteps(steps);
        }
        state.addTimeline(timeline);
        if (steps) this.slow();
        const before = state.connection;
        state.connected(!over ? "live" : before === "live" || before === "ended" ? "ended" : "still");
        if (OPEN.includes(before) && before !== state.connection) await this.load();
    }

    /** Parts that are expensive for the server and change slowly. What it cannot send becomes a notice. */
    slow() {
        if (this.asking || (document.hidden && !api.SAVED)) return;
        const part = async (name) => {
            try {
                this.state.put(name, await api[name]());
                delete this.state.problems[name];
            } catch (error) {
                this.state.problems[name] = error.message;
            }
        };
        this.asking = Promise.all(["lengths", "rewards", "store"].map(part)).finally(() => {
            this.asking = null;
            this.state.notify("connection");
        });
    }
}
