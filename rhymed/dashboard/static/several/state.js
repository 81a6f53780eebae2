// The list of runs, which of them are chosen, and their colours. Owns the choice, which is also in the address.
// Invariant: a run keeps its colour while it is chosen.

import { go, link, route } from "../lib/route.js";
import * as api from "./api.js";

export const MOST = 8; // chosen runs: there are no more colours
const USUAL = 6; // chosen at first
const ALIVE = ["running", "paused"];
const ALIVE_MS = 5_000;
const STILL_MS = 30_000;

export class State extends EventTarget {
    listing = null; // the server's answer
    chosen = new Map(); // id -> number of its colour, from 1
    problem = "";

    on(names, work) {
        for (const name of names.split(" ")) this.addEventListener(name, work);
    }

    notify(name) {
        this.dispatchEvent(new Event(name));
    }

    /** Asks again and again: often while a run is alive. */
    async watch() {
        if (!document.hidden || !this.listing) await this.load();
        const alive = this.runs.some((run) => ALIVE.includes(run.state));
        setTimeout(() => this.watch(), alive ? ALIVE_MS : STILL_MS);
    }

    async load() {
        try {
            const first = !this.listing;
            this.listing = await api.runs();
            this.problem = "";
            if (first) this.begin();
            for (const id of this.ids) if (!this.run(id)) this.chosen.delete(id);
        } catch (error) {
            this.problem = error.message;
        }
        this.notify("runs");
    }

    get runs() {
        return this.listing?.runs ?? [];
    }

    /** Of the chosen runs, in the order of the list. */
    get ids() {
        const order = new Map(this.runs.map((run, place) => [run.id, place]));
        return [...this.chosen.keys()].sort((a, b) => (order.get(a) ?? 0) - (order.get(b) ?? 0));
    }

    run(id) {
        return this.runs.find((run) => run.id === id);
    }

    name(id) {
        return this.run(id)?.name ?? id;
    }

    colour(id) {
        return `--c${this.chosen.get(id) ?? 8}`;
    }

    choose(id, on) {
        if (!on) this.chosen.delete(id);
        else if (this.chosen.size < MOST) this.chosen.set(id, this.free());
        this.remember();
        this.notify("chosen");
    }

    /** Those of the address, or else the first that have trained a step. */
    begin() {
        const asked = (route().query.get("runs") ?? "").split(",").filter((id) => this.run(id));
        const trained = this.runs.filter((run) => run.step > 0).map((run) => run.id);
        for (const id of (asked.length ? asked : trained.slice(0, USUAL)).slice(0, MOST))
            this.chosen.set(id, this.free());
    }

    /** Into the address, so that a link shows what its sender saw. */
    remember(query = {}) {
        const at = route();
        const kept = { ...Object.fromEntries(at.query), runs: this.ids.join(","), ...query };
        go(link(at.tab === "overview" ? "curves" : at.tab, at.path, kept), true);
    }

    free() {
        const taken = new Set(this.chosen.values());
        return Array.from({ length: MOST }, (_, at) => at + 1).find((colour) => !taken.has(colour));
    }
}
