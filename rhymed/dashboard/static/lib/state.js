// What the server has told so far. Owns the run's rows and the timeline; tells of every change by the name of what
// changed. Invariant: steps are sorted and each is there once, the newest telling counts.

import { Timeline } from "../charts/bands.js";

export class State extends EventTarget {
  run = null;
  queues = null;
  steps = [];
  evaluations = [];
  epochs = [];
  timeline = new Timeline();
  lengths = null;
  store = null;
  connection = "connecting"; // live, lost, ended (the run went while the page looked on), still (it was not there when the page came)
  problems = {}; // what the server could not tell -> why, in a sentence
  problem = ""; // why there is no connection, where the server said so
  since = Date.now(); // ms, of the connection's state

  /** `work` is called after each change of one of `names`. */
  on(names, work) {
    for (const name of names.split(" ")) this.addEventListener(name, work);
  }

  put(name, value) {
    this[name] = value;
    this.tell(name);
  }

  connected(connection) {
    if (connection === this.connection) return;
    this.since = Date.now();
    this.put("connection", connection);
  }

  addSteps(answer) {
    this.steps = merged(this.steps, answer.steps ?? []);
    this.evaluations = merged(this.evaluations, answer.evaluations ?? []);
    if (answer.epochs) this.epochs = answer.epochs;
    this.tell("steps");
  }

  addTimeline(answer) {
    this.timeline.add(answer);
    this.tell("timeline");
  }

  forget() {
    this.steps = [];
    this.evaluations = [];
    this.epochs = [];
    this.timeline = new Timeline();
  }

  tell(name) {
    this.dispatchEvent(new Event(name));
  }

  get lastStep() {
    return this.steps.length ? this.steps[this.steps.length - 1].step : -1;
  }

  /** The newest number known of that metric, over the steps; undefined when there is none. */
  newest(metric) {
    for (let i = this.steps.length - 1; i >= 0; i--) if (this.steps[i][metric] != null) return this.steps[i][metric];
    return undefined;
  }
}

function merged(old, fresh) {
  if (!fresh.length) return old;
  const rows = new Map([...old, ...fresh].map((row) => [row.step, row]));
  return [...rows.values()].sort((one, other) => one.step - other.step);
}
