// What the server has sent so far: the run's rows and the timeline. Dispatches an event for each change, by its name.
// Invariant: steps are sorted, without duplicates; the newest row of a step wins.

import { Timeline } from "../charts/timeline.js";

export class State extends EventTarget {
    run = null;
    queues = null;
    serial = 0; // of the newest row that the server has sent
    steps = [];
    evaluations = [];
    epochs = [];
    advice = []; // {name, wrong, change} of the newest steps
    timeline = new Timeline();
    lengths = null;
    rewards = null;
    store = null;
    connection = "connecting"; // live, lost, ended (the run ended while the page was open), still (it was not alive when the page opened), saved
    problems = {}; // part that the server could not send -> why, in a sentence
    problem = ""; // why there is no connection, if the server said so
    since = Date.now(); // ms: when the connection's state changed

    /** `work` is called after each change of one of `names`. */
    on(names, work) {
        for (const name of names.split(" ")) this.addEventListener(name, work);
    }

    put(name, value) {
        this[name] = value;
        this.notify(name);
    }

    connected(connection) {
        if (connection === this.connection) return;
        this.since = Date.now();
        this.put("connection", connection);
    }

    addSteps(answer) {
        this.serial = answer.serial;
        this.steps = merged(this.steps, answer.steps);
        this.evaluations = merged(this.evaluations, answer.evaluations);
        this.epochs = answer.epochs;
        this.advice = answer.advice;
        this.notify("steps");
    }

    addTimeline(answer) {
        this.timeline.add(answer);
        this.notify("timeline");
    }

    clear() {
        this.steps = [];
        this.evaluations = [];
        this.epochs = [];
        this.advice = [];
        this.timeline = new Timeline();
    }

    notify(name) {
        this.dispatchEvent(new Event(name));
    }

    get lastStep() {
        return this.steps.length ? this.steps[this.steps.length - 1].step : -1;
    }

    /** The newest number known of that metric, over the steps; undefined when there is none. */
    newest(metric) {
        for (let i = this.steps.length - 1; i >= 0; i--)
            if (this.steps[i][metric] != null) return this.steps[i][metric];
        return undefined;
    }
}

function merged(old, fresh) {
    if (!fresh.length) return old;
    const rows = new Map([...old, ...fresh].map((row) => [row.step, row]));
    return [...rows.values()].sort((a, b) => a.step - b.step);
}
