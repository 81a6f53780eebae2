// Elements. The only way into the page: text and attributes, never markup, so a model's output cannot run. There is no
// innerHTML in these files (tested).

/** An element. Children are nodes or text; null and false are left out. `on…` is a listener, `style` sets properties. */
export function h(tag, properties = {}, ...children) {
    const element = document.createElement(tag);
    set(element, properties);
    element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
    return element;
}

export function set(element, properties) {
    for (const [name, value] of Object.entries(properties)) {
        if (value == null || value === false) element.removeAttribute(name);
        else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
        else if (name === "style")
            for (const [key, to] of Object.entries(value)) element.style.setProperty(key, to);
        else if (name === "value" || name === "checked") element[name] = value;
        else element.setAttribute(name, value === true ? "" : value);
    }
    return element;
}

export function fill(element, ...children) {
    element.replaceChildren(...children.flat(Infinity).filter((child) => child != null && child !== false));
    return element;
}

/** Writes only differences, so that screen readers and text selections are not disturbed. */
export function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
}

export function empty(title, text) {
    return h("div", { class: "empty" }, h("strong", {}, title), h("p", {}, text));
}

/** A section with a heading. `name`: its class, and the beginning of the heading's id. */
export function panel(title, name, ...content) {
    const properties = { class: `panel ${name}`, "aria-labelledby": `${name}-title` };
    return h("section", properties, h("h3", { id: `${name}-title` }, title), content);
}

/** `titles`: of the columns; `rows`: elements. */
export function tableOf(titles, rows, properties = {}) {
    const heads = titles.map((title) => h("th", { scope: "col" }, title));
    return h("table", properties, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows));
}

export function option(value, label = value) {
    return h("option", { value }, label);
}

/** Calls `work` at most once per frame. */
export function onFrame(work) {
    let due = 0;
    return () => {
        due ||= requestAnimationFrame(() => {
            due = 0;
            work();
        });
    };
}

/** Calls `work` with the last arguments after `ms` without a call. */
export function debounced(work, ms) {
    let timer = 0;
    return (...parameters) => {
        clearTimeout(timer);
        timer = setTimeout(() => work(...parameters), ms);
    };
}

/** Whether a key event belongs to a form field. */
export function typing(event) {
    return event.target.closest?.("input, select, textarea, [contenteditable]") != null;
}
