// What one prompt was answered: the group's responses side by side by epoch, or one of them in full beside the same one of
// another epoch. Owns which epochs are shown. A row of /api/prompts/<id> is called a sample here.

import * as api from "../lib/api.js";
import { copyable } from "../lib/copy.js";
import { empty, fill, h, option, set } from "../lib/dom.js";
import { number, percent, plural, stepName, whole } from "../lib/format.js";
import { draftedSentence, responseText } from "../lib/pieces.js";
import { link } from "../lib/route.js";

const COLUMNS = 3; // epochs side by side at first
const RESPONSES = 24; // of a group at first
const PREVIOUS = "previous";

export class Group {
  constructor({ open, back, step, run }) {
    Object.assign(this, { open, back, step, run });
    this.element = h("div", { class: "group" });
    this.shown = null; // steps of the epochs in the columns; null: the first and the newest
    this.responses = RESPONSES;
    this.beside = PREVIOUS; // step of the other response; "none"
    this.nothing();
  }

  nothing() {
    this.path = [];
    fill(this.element, empty("Choose a prompt", "Its responses appear here, epoch by epoch, with their rewards; of each response the tokens that were accepted drafts are marked."));
  }

  async show(path, query) {
    const fresh = path[0] !== this.path[0];
    this.path = path;
    this.beside = query.get("beside") ?? PREVIOUS;
    if (fresh) {
      this.prompt = null;
      this.shown = null;
      this.responses = RESPONSES;
    }
    await this.again(!fresh);
  }

  /** `kept`: what is known of the prompt is new enough. */
  async again(kept = false) {
    this.aborter?.abort();
    const { signal } = (this.aborter = new AbortController());
    set(this.element, { "aria-busy": "true" });
    try {
      if (!kept || !this.prompt) this.prompt = await api.prompt(this.path[0], signal);
      const content = this.path.length === 3 ? await this.sampleView(signal) : this.groupView();
      if (!signal.aborted) this.put(content);
    } catch (error) {
      if (!signal.aborted) fill(this.element, empty("This cannot be shown", error.message), this.toolbar());
    }
    if (!signal.aborted) set(this.element, { "aria-busy": null });
  }

  /** What had the focus may be gone: then the new title has it, for who works with keys or hears the page. */
  put(content) {
    const had = this.element.contains(document.activeElement);
    fill(this.element, content);
    const title = this.element.querySelector("h2");
    if (had && title) set(title, { tabindex: "-1" }).focus({ preventScroll: true });
  }

  toolbar(...more) {
    return h("div", { class: "bar" }, h("button", { type: "button", class: "back", onclick: () => this.back() }, "← Back"), more);
  }

  // -- the group ------------------------------------------------------------------------------------------------

  groupView() {
    const { id, epochs } = this.prompt;
    const columns = this.columns();
    const indices = [...new Set(epochs.flatMap((epoch) => epoch.samples.map((sample) => sample.index)))].sort((one, other) => one - other);
    const some = indices.slice(0, this.responses);
    const more = indices.length > some.length && h("button", { type: "button", onclick: () => { this.responses *= 4; this.again(true); } }, `Show more of ${plural(indices.length, "response")}`);
    return [
      this.toolbar(h("h2", {}, "Prompt ", h("code", {}, id)), h("span", { class: "muted" }, plural(epochs.length, "epoch"))),
      promptText(this.prompt.text),
      this.prompt.missing && h("p", { class: "note" }, `No text here: ${this.prompt.missing}.`.replace(/\.+$/, ".")),
      epochs.length > 1 && this.chips(),
      h("div", { class: "scroll" }, h("div", { class: "matrix", role: "table", "aria-label": "Responses by epoch", style: { "--columns": columns.length } },
        h("div", { class: "matrix-row head", role: "row" }, columns.map((epoch) => h("div", { role: "columnheader" }, this.epochTitle(epoch)))),
        some.map((index) => h("div", { class: "matrix-row", role: "row" }, columns.map((epoch) => this.card(epoch.samples.find((sample) => sample.index === index), index)))))),
      more,
    ];
  }

  columns() {
    const { epochs } = this.prompt;
    const telling = epochs.filter((_, at) => at === 0 || at > epochs.length - COLUMNS); // how it began, and what has become of it
    const chosen = this.shown ? epochs.filter((epoch) => this.shown.has(epoch.step)) : telling;
    return chosen.length ? chosen : telling;
  }

  chips() {
    const chosen = new Set(this.columns().map((epoch) => epoch.step));
    const toggle = (epoch) => {
      chosen[chosen.has(epoch.step) ? "delete" : "add"](epoch.step);
      this.shown = chosen;
      this.again(true);
    };
    return h("div", { class: "chips", role: "group", "aria-label": "Epochs that are shown" }, this.prompt.epochs.map((epoch) =>
      h("button", { type: "button", class: "chip", "aria-pressed": String(chosen.has(epoch.step)), onclick: () => toggle(epoch) }, epochName(epoch))));
  }

  epochTitle(epoch) {
    const rewards = epoch.samples.map((sample) => sample.reward).filter((reward) => reward != null);
    const mean = rewards.reduce((one, other) => one + other, 0) / (rewards.length || 1);
    const lengths = epoch.samples.reduce((sum, sample) => sum + (sample.length ?? 0), 0) / (epoch.samples.length || 1);
    const name = epochName(epoch);
    return [h("strong", {}, name), h("span", { class: "muted" }, `${name === stepName(epoch.step) ? "" : `${stepName(epoch.step)}, `}${rewards.length ? `reward ${number(mean)}, ` : ""}${number(lengths)} tokens`)];
  }

  card(sample, index) {
    if (!sample) return h("div", { class: "card absent", role: "cell" }, h("span", { class: "muted" }, `no response ${index + 1} in this epoch`));
    const path = [this.path[0], sample.step, sample.index];
    return h("div", { class: "card", role: "cell" },
      h("a", { class: "card-link", href: link("samples", path, this.linked()), "aria-label": `Response ${index + 1}, ${stepName(sample.step)}`, title: sample.id },
        h("div", { class: "card-head" }, h("b", {}, `#${index + 1}`), reward(sample), h("span", {}, `${whole(sample.length)} tokens`), sample.drafted != null && sample.length > 0 && h("span", { class: sample.drafted ? "drafted" : "" }, `${percent(sample.drafted / sample.length)} drafted`), end(sample)),
        h("div", { class: "card-text", dir: "auto" }, sample.text ?? h("span", { class: "muted" }, sample.reason || (this.prompt.missing ? "" : "Its text is not kept.")))));
  }

  linked() {
    const query = new URLSearchParams(location.hash.split("?")[1] ?? "");
    return { query: query.get("query"), sort: query.get("sort") };
  }

  // -- one response ---------------------------------------------------------------------------------------------

  get step_() {
    return Number(this.path[1]);
  }

  async sampleView(signal) {
    const [id, step, index] = this.path;
    const others = this.prompt.epochs.filter((epoch) => epoch.step !== Number(step) && epoch.samples.some((sample) => sample.index === Number(index)));
    const earlier = others.filter((epoch) => epoch.step < Number(step));
    const beside = this.beside === PREVIOUS ? earlier[earlier.length - 1] : others.find((epoch) => String(epoch.step) === this.beside);
    const ids = [`${step}/${id}/${index}`, ...(beside ? [`${beside.step}/${id}/${index}`] : [])];
    const samples = await Promise.all(ids.map((one) => api.sample(one, signal)));
    const choice = h("select", { "aria-label": "Beside it", onchange: () => this.open(this.path, { beside: choice.value }) },
      option("none", "nothing beside it"), option(PREVIOUS, "beside the epoch before"), others.map((epoch) => option(String(epoch.step), `beside ${epochName(epoch)}`)));
    choice.value = beside && this.beside !== PREVIOUS ? String(beside.step) : this.beside === PREVIOUS ? PREVIOUS : "none";
    return [
      this.toolbar(h("h2", {}, `Response ${Number(index) + 1}`), h("button", { type: "button", onclick: () => this.index(-1), title: "P" }, "previous"),
        h("button", { type: "button", onclick: () => this.index(1), title: "N" }, "next"), others.length > 0 && choice),
      promptText(samples[0].prompt ?? this.prompt.text),
      h("p", { class: "legend-line" }, h("mark", {}, "marked"), " tokens were drafted from history and accepted; the others were decoded one by one."),
      h("div", { class: "pair" }, samples.map((sample) => this.full(sample))),
    ];
  }

  full(sample) {
    const epoch = this.prompt.epochs.find((one) => one.step === sample.step);
    const versions = (sample.versions ?? []).map(([version, count]) => `version ${version}: ${plural(count, "token")}`).join(", ");
    const name = epoch ? epochName(epoch) : stepName(sample.step);
    return h("article", { class: "panel full", "data-step": sample.step, "aria-label": `${name}, response ${sample.index + 1}` },
      h("header", {}, h("h3", {}, name), name !== stepName(sample.step) && h("span", { class: "muted" }, stepName(sample.step)), reward(sample), h("span", {}, `${whole(sample.length)} tokens`), end(sample), sample.state && h("span", { class: "muted" }, sample.state)),
      h("p", { class: "sample-id" }, copyable(sample.id, `rhymed logs ${this.run()} --sample=${sample.id} tells its story; ids count steps and responses from 0`)),
      h("p", { class: "drafting" }, draftedSentence(sample)),
      sample.missing && h("p", { class: "note" }, sample.missing),
      (sample.pieces?.length > 0 || !sample.missing) && responseText(sample.pieces ?? [], `${name}, text of response ${sample.index + 1}`),
      h("footer", { class: "muted" }, versions, sample.reason && `; ${sample.reason}`));
  }

  // -- keys -----------------------------------------------------------------------------------------------------

  epoch(by) {
    if (this.path.length !== 3 || !this.prompt) return;
    const steps = this.prompt.epochs.filter((epoch) => epoch.samples.some((sample) => sample.index === Number(this.path[2]))).map((epoch) => epoch.step);
    const to = steps[steps.indexOf(this.step_) + by];
    if (to != null) this.open([this.path[0], to, this.path[2]]);
  }

  index(by) {
    if (!this.prompt) return;
    const epoch = this.prompt.epochs.find((one) => one.step === this.step_) ?? this.prompt.epochs[this.prompt.epochs.length - 1];
    const indices = (epoch?.samples ?? []).map((sample) => sample.index).sort((one, other) => one - other);
    const at = this.path.length === 3 ? indices.indexOf(Number(this.path[2])) + by : by > 0 ? 0 : indices.length - 1;
    if (indices[at] != null) this.open([this.path[0], epoch.step, indices[at]], this.beside === PREVIOUS ? {} : { beside: this.beside });
  }
}

function promptText(text) {
  if (text == null) return h("p", { class: "muted" }, "The prompt's row is not in the store.");
  return h("details", { class: "panel prompt", open: true }, h("summary", {}, "Prompt"), responseText([{ text, drafted: null }], "Text of the prompt"));
}

function epochName(epoch) {
  if (epoch.name) return epoch.name;
  return epoch.step < 0 || epoch.step >= 2 ** 30 || epoch.epoch == null ? stepName(epoch.step) : `epoch ${epoch.epoch}`;
}

function reward(sample) {
  if (sample.reward == null) return h("span", { class: "reward none-yet" }, "no reward");
  const share = Math.max(0, Math.min(1, sample.reward));
  return h("span", { class: "reward" }, h("i", { class: "gauge", "aria-hidden": "true" }, h("i", { style: { width: `${share * 100}%` } })), `reward ${number(sample.reward)}`);
}

function end(sample) {
  const words = { length: "cut at the limit", abort: "broken off" }[sample.finish_reason];
  return words && h("span", { class: "cut" }, words);
}
