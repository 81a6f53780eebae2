// Requests to the server. Owns the addresses (relative, so that the page works behind a proxy's path) and turns error
// answers into Errors with a sentence. Knows nothing of the page.

const PATIENCE_MS = 30_000;
const inside = document.getElementById("saved");

/** What a saved page has inside: {answers, totals, samples, of, problems}. Null: the page is served. */
export const SAVED = inside && JSON.parse(inside.textContent);

/** Throws an Error whose message is for the user; `status` is the HTTP status, 0 if the server did not answer. */
export async function ask(path, parameters = {}, signal = undefined) {
    if (SAVED) return SAVED.answers[path];
    const query = new URLSearchParams(
        Object.entries(parameters).filter(([, value]) => value != null && value !== ""),
    );
    const address = query.size ? `${path}?${query}` : path;
    const patience = AbortSignal.timeout(PATIENCE_MS);
    let response;
    try {
        response = await fetch(address, { signal: signal ? AbortSignal.any([signal, patience]) : patience });
    } catch (error) {
        if (error.name === "AbortError") throw error;
        throw failure("The dashboard's server does not answer.", 0);
    }
    const answer = await response.json().catch(() => null);
    if (!response.ok)
        throw failure(answer?.error ?? `The server answers with status ${response.status}.`, response.status);
    return answer;
}

function failure(message, status) {
    return Object.assign(new Error(message), { status });
}

export const run = () => ask("api/run");
export const news = (serial, since) => ask("api/news", { serial, since });
export const lengths = () => ask("api/lengths");
export const rewards = () => ask("api/rewards");
export const logs = (wanted, signal) => ask("api/logs", wanted, signal);
export const responses = (query, from, signal) => ask("api/responses", { query, from }, signal);
export const store = () => ask("api/store");
export const prompts = (wanted, signal) => ask("api/prompts", wanted, signal);
export const prompt = (id, signal) => ask(`api/prompts/${encodeURIComponent(id)}`, {}, signal);
/** `tokens`: with the numbers of each token. */
export const sample = (id, signal, tokens = false) =>
    ask(
        `api/samples/${id.split("/").map(encodeURIComponent).join("/")}`,
        { tokens: tokens ? 1 : null },
        signal,
    );
