// A list of which only the visible rows are in the page. Owns scrolling, the pages it has fetched, and the active row.
// Does not know what a row is: `fetch(offset, limit, signal)` gives {total, rows}, `draw(row)` what is in it.

import { fill, onFrame, h, set } from "./dom.js";

const PAGE = 50;
const KEPT = 40; // pages
const TALLEST = 12_000_000; // pixels that every browser can scroll
const BEYOND = 4; // rows kept above and below the visible ones

export class List {
    constructor({ label, height, fetch, draw, chosen, failed }) {
        Object.assign(this, { height, fetch, drawRow: draw, chosen, failed });
        this.total = 0;
        this.active = -1;
        this.pages = new Map(); // number -> {rows: null until fetched, asked: resolves then}
        this.options = new Map(); // index -> its element
        this.inner = h("div", { class: "list-inner" });
        this.element = h(
            "div",
            { class: "list", role: "listbox", tabindex: "0", "aria-label": label },
            this.inner,
        );
        this.draw = onFrame(() => this.paint());
        this.element.addEventListener("scroll", this.draw);
        this.inner.addEventListener("click", (event) => this.click(event));
        this.element.addEventListener("keydown", (event) => this.key(event));
        new ResizeObserver(this.draw).observe(this.element);
    }

    /** Fetches again. Resolves when the first page is there. */
    async reload(keepPlace = false) {
        this.aborter?.abort();
        this.aborter = new AbortController();
        this.pages = new Map();
        if (!keepPlace) {
            this.active = -1;
            this.element.scrollTop = 0;
        }
        await this.page(keepPlace ? Math.floor(this.first() / PAGE) : 0);
    }

    /** Fetches its rows, once. */
    page(number) {
        let page = this.pages.get(number);
        if (!page) {
            this.pages.set(number, (page = { rows: null }));
            page.asked = this.ask(number, page, this.aborter.signal);
        }
        return page.asked;
    }

    async ask(number, page, signal) {
        try {
            const { total, rows } = await this.fetch(number * PAGE, PAGE, signal);
            if (signal.aborted) return;
            this.total = total;
            page.rows = rows;
            this.failed(null);
        } catch (error) {
            if (signal.aborted) return;
            this.pages.delete(number);
            this.failed(error);
        }
        this.shorten(number);
        this.draw();
    }

    shorten(near) {
        if (this.pages.size <= KEPT) return;
        const far = [...this.pages.keys()].sort((a, b) => Math.abs(b - near) - Math.abs(a - near));
        for (const number of far.slice(0, this.pages.size - KEPT)) this.pages.delete(number);
    }

    row(index) {
        return this.pages.get(Math.floor(index / PAGE))?.rows?.[index % PAGE];
    }

    get tall() {
        return Math.min(this.total * this.height, TALLEST);
    }

    /** Index of the first visible row. In a list too tall for browsers, a scrolled pixel stands for several. */
    first() {
        const room = this.tall - this.element.clientHeight;
        if (this.total * this.height <= TALLEST) return Math.floor(this.element.scrollTop / this.height);
        return Math.floor(
            (this.element.scrollTop / room) * (this.total - this.element.clientHeight / this.height),
        );
    }

    paint() {
        if (!this.element.clientHeight) return; // nothing is fetched for a hidden list
        this.inner.style.height = `${this.tall}px`;
        const first = Math.max(0, this.first() - BEYOND);
        const last = Math.min(
            this.total,
            this.first() + Math.ceil(this.element.clientHeight / this.height) + BEYOND,
        );
        const exact = this.total * this.height <= TALLEST;
        const base = exact ? 0 : this.element.scrollTop - this.first() * this.height;
        for (const i of [...this.options.keys()]) if (i < first || i >= last) this.leave(i);
        for (let i = first; i < last; i++) {
            this.page(Math.floor(i / PAGE));
            this.option(i, base + i * this.height);
        }
        set(this.element, {
            "aria-activedescendant": this.active >= first && this.active < last ? `row-${this.active}` : null,
        });
    }

    /** An element stays while its row is visible: if it went between press and release, the click would be lost. */
    option(i, top) {
        if (!this.options.has(i)) {
            this.options.set(
                i,
                h("div", { id: `row-${i}`, role: "option", class: "row", "aria-posinset": i + 1 }),
            );
            this.inner.append(this.options.get(i));
        }
        const [element, row] = [this.options.get(i), this.row(i) ?? null];
        set(element, {
            "aria-selected": String(i === this.active),
            "aria-setsize": this.total,
            style: { top: `${top}px`, height: `${this.height}px` },
        });
        if (element.shown === row) return;
        element.shown = row;
        fill(element, row ? this.drawRow(row) : h("span", { class: "muted" }, "…"));
    }

    leave(i) {
        this.options.get(i).remove();
        this.options.delete(i);
    }

    choose(index) {
        if (this.total === 0) return;
        this.active = Math.max(0, Math.min(this.total - 1, index));
        this.reveal();
        this.draw();
        const row = this.row(this.active);
        if (row) this.chosen(row);
        else
            this.page(Math.floor(this.active / PAGE)).then(
                () => this.row(this.active) && this.chosen(this.row(this.active)),
            );
    }

    /** Makes the row active that `wanted` accepts, if it is loaded. */
    mark(wanted) {
        const before = this.active;
        for (const [number, { rows }] of this.pages) {
            const at = rows?.findIndex(wanted) ?? -1;
            if (at >= 0) this.active = number * PAGE + at;
        }
        if (this.active !== before) {
            this.inner.style.height = `${this.tall}px`;
            this.reveal();
        }
        this.draw();
    }

    reveal() {
        if (this.total * this.height > TALLEST) {
            const share = this.active / Math.max(1, this.total - this.element.clientHeight / this.height);
            if (
                this.active < this.first() ||
                this.active > this.first() + this.element.clientHeight / this.height - 1
            )
                this.element.scrollTop = share * (this.tall - this.element.clientHeight);
            return;
        }
        const top = this.active * this.height;
        const { scrollTop, clientHeight } = this.element;
        if (top < scrollTop) this.element.scrollTop = top;
        else if (top + this.height > scrollTop + clientHeight)
            this.element.scrollTop = top + this.height - clientHeight;
    }

    /** By position: a row's content may be replaced between press and release. */
    click(event) {
        const y = event.clientY - this.element.getBoundingClientRect().top;
        const exact = this.total * this.height <= TALLEST;
        this.choose(
            Math.floor(exact ? (y + this.element.scrollTop) / this.height : this.first() + y / this.height),
        );
    }

    key(event) {
        const view = Math.max(1, Math.floor(this.element.clientHeight / this.height) - 1);
        const to = {
            ArrowDown: this.active + 1,
            ArrowUp: this.active - 1,
            PageDown: this.active + view,
            PageUp: this.active - view,
            Home: 0,
            End: this.total - 1,
            Enter: this.active,
        }[event.key];
        if (to == null || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault();
        this.choose(to);
    }
}
