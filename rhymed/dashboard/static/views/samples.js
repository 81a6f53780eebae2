// The sample browser: all prompts at the left with search and order, and what one of them was answered at the right. Owns
// the list and the keys; the address says what is open: #samples/<prompt>/<step>/<index>?query=…&sort=…

import * as api from "../lib/api.js";
import { empty, fill, h, option, say, settled, typing } from "../lib/dom.js";
import { number, plural } from "../lib/format.js";
import { Group } from "./group.js";
import { List } from "./list.js";
import { go, link } from "../lib/route.js";

const NO_STEP = -1; // as the state tells it
const ORDERS = [["id", "by id"], ["reward/asc", "lowest reward first"], ["reward/desc", "highest reward first"], ["spread/desc", "rewards most apart first"],
  ["spread/asc", "rewards most alike first"], ["length/desc", "longest first"], ["length/asc", "shortest first"]];
const KEYS = "Keys: J and K the next and the previous prompt, ← → the epoch, N and P the next and the previous response, Esc back, / search.";

export class Samples {
  constructor(host, state) {
    this.state = state;
    this.path = [];
    this.search = h("input", { type: "search", placeholder: "Search in prompts", "aria-label": "Search in prompts", oninput: settled(() => this.ask(), 250) });
    this.order = h("select", { "aria-label": "Order", onchange: () => this.ask() }, ORDERS.map(([value, label]) => option(value, label)));
    this.fresh = h("button", { type: "button", class: "small", hidden: true, onclick: () => this.again() }, "new samples: refresh");
    this.said = h("p", { class: "muted count", role: "status" });
    this.list = new List({ label: "Prompts", height: 80, draw: row, fetch: (...page) => this.fetch(...page), failed: (error) => this.tell(error),
      chosen: (prompt) => this.open([prompt.id]) });
    this.none = h("div", { hidden: true });
    this.group = new Group({ open: (path, query) => this.open(path, query), back: () => this.back(), step: (by) => this.step(by),
      run: () => state.run?.folder ?? "" });
    this.split = h("div", { class: "split" },
      h("div", { class: "side panel" }, h("div", { class: "bar" }, this.search), h("div", { class: "bar" }, this.said, this.fresh, this.order), this.list.element, this.none),
      h("div", { class: "main" }, this.group.element, h("p", { class: "muted hint" }, KEYS)));
    fill(host, this.split);
    document.addEventListener("keydown", (event) => host.hidden || this.key(event));
    state.on("steps", () => this.stale());
  }

  /** The address leads here. */
  show({ path, query }) {
    const [words, order] = [query.get("query") ?? "", query.get("sort") ?? "id"];
    const same = this.asked && words === this.search.value && order === this.order.value;
    this.search.value = words;
    this.order.value = ORDERS.some(([value]) => value === order) ? order : "id";
    this.path = path;
    this.split.dataset.open = String(path.length > 0);
    if (!same) this.load();
    if (path.length) this.group.show(path, query);
    else this.group.nothing();
    this.list.mark((prompt) => prompt.id === path[0]);
  }

  open(path, query = {}) {
    go(link("samples", path, { ...this.query(), ...query }));
  }

  back() {
    this.open(this.path.length > 1 ? [this.path[0]] : []);
    if (this.path.length <= 1) this.list.element.focus();
  }

  query() {
    return { query: this.search.value.trim(), sort: this.order.value === "id" ? "" : this.order.value };
  }

  ask() {
    go(link("samples", this.path, this.query()), true);
    this.load();
  }

  load() {
    this.asked = true;
    this.fresh.hidden = true;
    this.known = this.state.lastStep;
    return this.list.reload();
  }

  async again() {
    this.fresh.hidden = true;
    this.known = this.state.lastStep;
    await this.list.reload(true);
    if (this.path.length) this.group.again();
  }

  stale() {
    if (!this.asked) return;
    if (this.list.total === 0) this.load();
    else if (this.known === NO_STEP) this.known = this.state.lastStep; // the list was here before the first steps were
    else this.fresh.hidden = this.known === this.state.lastStep;
  }

  async fetch(offset, limit, signal) {
    const [sort, order] = this.order.value.split("/");
    const answer = await api.prompts({ query: this.search.value.trim(), sort, order, offset, limit }, signal);
    return { total: answer.total, rows: answer.prompts };
  }

  tell(error) {
    const total = this.list.total;
    const words = this.search.value.trim();
    this.list.element.hidden = error != null || total === 0;
    this.none.hidden = !this.list.element.hidden;
    say(this.said, error ? "" : words ? `${plural(total, "prompt")} with “${words}”` : plural(total, "prompt"));
    if (error) fill(this.none, empty("The prompts could not be read", error.message), h("button", { type: "button", onclick: () => this.load() }, "Try again"));
    else if (words) fill(this.none, empty("No prompt has these words", "The search looks at the text of the prompts and at the beginning of their ids."));
    else fill(this.none, empty("No samples yet", "Prompts appear here as soon as the first of their responses is in the store."));
    if (!error && this.path.length) this.list.mark((prompt) => prompt.id === this.path[0]);
  }

  step(by) {
    this.list.choose(this.list.active + by);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (typing(event)) {
      if (event.key === "Escape") this.list.element.focus();
      return;
    }
    const does = { j: () => this.step(1), k: () => this.step(-1), "/": () => this.search.focus(), Escape: () => this.path.length && this.back(),
      ArrowLeft: () => this.group.epoch(-1), ArrowRight: () => this.group.epoch(1), n: () => this.group.index(1), p: () => this.group.index(-1) }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  }
}

function row(prompt) {
  const spread = prompt.spread > 0 ? ` ± ${number(Math.round(prompt.spread * 100) / 100)}` : "";
  const facts = [prompt.reward == null ? "no reward" : `reward ${number(prompt.reward)}${spread}`, prompt.length == null ? null : `${number(prompt.length)} tokens`,
    `${plural(prompt.samples, "sample")}, ${plural(prompt.epochs, "epoch")}`];
  return [
    h("div", { class: "row-text", dir: "auto" }, prompt.text?.slice(0, 300).trim() || prompt.id),
    h("div", { class: "row-facts" }, facts.filter(Boolean).join(" · ")),
  ];
}
