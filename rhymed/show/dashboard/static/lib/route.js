// The address's hash is the view: "#samples/<prompt>/<step>/<index>?sort=reward". Owns reading and writing it, so that a
// link shows what its sender saw.

const listeners = new Set();

/** {tab, path: the parts after it, query: URLSearchParams} of the present hash. */
export function route() {
    const [path, query = ""] = location.hash.slice(1).split("?", 2);
    const [tab = "", ...rest] = path.split("/").map(plain);
    return { tab: tab || "overview", path: rest, query: new URLSearchParams(query) };
}

export function link(tab, path = [], query = {}) {
    const known = new URLSearchParams(
        Object.entries(query).filter(([, value]) => value != null && value !== ""),
    );
    const address = "#" + [tab, ...path].map((part) => encodeURIComponent(part)).join("/");
    return known.size ? `${address}?${known}` : address;
}

/** Goes there. `quietly`: only the address changes, without a history entry. */
export function go(address, quietly = false) {
    if (address === location.hash) return;
    if (!quietly) {
        location.hash = address;
        return;
    }
    history.replaceState(null, "", address);
}

export function onRoute(work) {
    listeners.add(work);
}

/** Takes the token out of the address: the cookie has it now, and copied links should not. */
export function forgetToken() {
    const address = new URL(location.href);
    if (!address.searchParams.has("token")) return;
    address.searchParams.delete("token");
    history.replaceState(null, "", address);
}

function plain(part) {
    try {
        return decodeURIComponent(part);
    } catch {
        return part;
    }
}

addEventListener("hashchange", () => {
    for (const work of listeners) work(route());
});
