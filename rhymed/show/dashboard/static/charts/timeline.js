// The timeline's data: spans of workers, and the seconds of each activity between two times. Pure.
// Invariant: a worker's spans are ordered by their ends, without duplicates. Times are Unix seconds.

const { compare } = new Intl.Collator("en", { numeric: true });
const ROLES = ["trainer", "rollout", "reward"];
const OTHER = "#888888"; // of an activity without a colour
const REMEMBERED = 400_000; // spans; above it, the older half of each worker's is dropped
const EVENTS = 10_000; // the server's limit too; a page may be open for weeks

export class Timeline {
    activities = {}; // name -> colour, in the order in which they are drawn
    names = []; // of the activities
    workers = new Map(); // name -> {name, role, host, spans, sums: seconds by activity, gone: last event if it is "lost" or "left"}
    events = [];
    newest = 0;
    oldest = Infinity;
    count = 0;
    seen = new Set();

    add({ spans = [], events = [], activities = null }) {
        for (const name in activities) this.number(name, activities[name]);
        for (const span of spans) this.addSpan(span);
        const before = this.events.length;
        for (const event of events) this.addEvent(event);
        if (this.events.length > before) this.events.sort((a, b) => a.t - b.t);
        if (this.events.length > 2 * EVENTS) {
            this.events = this.events.slice(-EVENTS);
            this.seen = new Set(this.events.map(keyOf));
        }
        if (this.count > REMEMBERED) this.shorten();
    }

    addSpan(span) {
        const worker = this.worker(span.worker, span.role, span.host);
        const last = worker.spans[worker.spans.length - 1];
        if (last && span.t <= last.t) return;
        const { in: inside, t, s, version = -1, tokens_per_s: speed = 0 } = span;
        const { cpu, ram_gib: ram, gpu, gpu_gib: gpuRam, gpu_celsius: celsius } = span; // undefined: not known
        const which = Object.keys(inside).map((name) => this.number(name));
        const uses = { cpu, ram, gpu, gpuRam, celsius };
        worker.spans.push({ t, s, version, speed, which, took: Object.values(inside), ...uses });
        for (const name in inside) worker.sums[name] = (worker.sums[name] ?? 0) + inside[name];
        if (worker.gone && span.t > worker.gone.t) worker.gone = null;
        this.count += 1;
        this.newest = Math.max(this.newest, span.t);
        this.oldest = Math.min(this.oldest, span.t - span.s);
    }

    /** An activity's place in `names`. */
    number(name, colour = OTHER) {
        if (!(name in this.activities)) {
            this.activities[name] = colour;
            this.names.push(name);
        }
        return this.names.indexOf(name);
    }

    addEvent(event) {
        const key = keyOf(event);
        if (this.seen.has(key)) return;
        this.seen.add(key);
        this.events.push(event);
        this.newest = Math.max(this.newest, event.t);
        this.oldest = Math.min(this.oldest, event.t);
        if (!event.worker) return;
        const worker = this.worker(event.worker, event.role ?? roleOf(event.worker), "");
        const ended = event.event === "lost" || event.event === "left";
        if (event.t >= (worker.changed ?? 0)) worker.gone = ended ? event : null;
        worker.changed = Math.max(worker.changed ?? 0, event.t);
    }

    worker(name, role, host) {
        let worker = this.workers.get(name);
        if (!worker || (role && role !== worker.role)) this.order = null; // rows must be sorted again
        if (!worker) this.workers.set(name, (worker = { name, role, host, spans: [], sums: {}, gone: null }));
        if (role) worker.role = role;
        if (host) worker.host = host;
        return worker;
    }

    /** In the order of the rows: trainer, rollout, reward; numbers in names count as numbers. */
    rows() {
        if (this.order) return this.order;
        const rank = (worker) => (ROLES.indexOf(worker.role) + ROLES.length + 1) % (ROLES.length + 1);
        this.order = [...this.workers.values()].sort((a, b) => rank(a) - rank(b) || compare(a.name, b.name));
        return this.order;
    }

    shorten() {
        this.count = 0;
        for (const worker of this.workers.values()) {
            worker.spans = worker.spans.slice(worker.spans.length >> 1);
            this.count += worker.spans.length;
        }
        const starts = [...this.workers.values()]
            .filter((worker) => worker.spans.length)
            .map((worker) => worker.spans[0].t - worker.spans[0].s);
        this.oldest = Math.min(...starts);
    }
}

/** Seconds of each of `count` activities in these spans between two times. */
export function shares(spans, count, from, to) {
    const sums = new Array(count).fill(0);
    for (let i = firstAfter(spans, from); i < spans.length; i++) {
        const span = spans[i];
        const part = overlap(span, from, to);
        if (span.t - span.s >= to) break;
        if (part > 0) for (let k = 0; k < span.which.length; k++) sums[span.which[k]] += span.took[k] * part;
    }
    return sums;
}

/** The same for `parts` equal parts of the time: one Float32Array with `count` numbers per part. */
export function columns(spans, count, from, to, parts) {
    const sums = new Float32Array(parts * count);
    const width = (to - from) / parts;
    for (let i = firstAfter(spans, from); i < spans.length; i++) {
        const span = spans[i];
        const start = span.t - span.s;
        if (start >= to) break;
        const first = Math.max(0, Math.floor((start - from) / width));
        const last = Math.min(parts - 1, Math.floor((span.t - from) / width));
        for (let column = first; column <= last; column++) {
            const left = from + column * width;
            const part = overlap(span, left, left + width);
            for (let k = 0; k < span.which.length; k++)
                sums[column * count + span.which[k]] += span.took[k] * part;
        }
    }
    return sums;
}

/** The span that covers this time, or undefined. */
export function at(spans, time) {
    const span = spans[firstAfter(spans, time)];
    return span && span.t - span.s <= time ? span : undefined;
}

/** Index of the first span that ends after this time. */
export function firstAfter(spans, time) {
    let low = 0;
    let high = spans.length;
    while (low < high) {
        const middle = (low + high) >> 1;
        if (spans[middle].t > time) high = middle;
        else low = middle + 1;
    }
    return low;
}

/** Share of the span that lies between these times. */
function overlap(span, from, to) {
    const length = Math.min(span.t, to) - Math.max(span.t - span.s, from);
    return length > 0 && span.s > 0 ? length / span.s : 0;
}

function keyOf(event) {
    return `${event.t} ${event.event} ${event.worker ?? ""} ${event.step ?? ""}`;
}

function roleOf(name) {
    return ROLES.find((role) => name.startsWith(role)) ?? "";
}
