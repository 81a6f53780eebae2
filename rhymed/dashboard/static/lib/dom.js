// Elements. Owns the one way in which anything gets into the page: as text or as attributes, never as markup, so what
// a model wrote cannot act. There is no innerHTML in these files (tested).

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
    else if (name === "style") for (const [key, to] of Object.entries(value)) element.style.setProperty(key, to);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

/** Writes only what differs, so that a screen reader and a text selection are left in peace. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function empty(title, text) {
  return h("div", { class: "empty" }, h("strong", {}, title), h("p", {}, text));
}

export function option(value, label = value) {
  return h("option", { value }, label);
}

/** Calls `work` at most once a frame, however often the result is called. */
export function framed(work) {
  let due = 0;
  return () => {
    due ||= requestAnimationFrame(() => {
      due = 0;
      work();
    });
  };
}

/** Calls `work` with the last arguments when it has been quiet for `ms`. */
export function settled(work, ms) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), ms);
  };
}

/** Whether a key is meant for the field that has the focus. */
export function typing(event) {
  return event.target.closest?.("input, select, textarea, [contenteditable]") != null;
}
