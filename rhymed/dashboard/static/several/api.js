// Requests about several runs. Knows their addresses, and nothing of the page.

import { ask } from "../lib/api.js";

const joined = (names) => names.join(",");

export const runs = () => ask("api/runs");
export const metrics = (runs) => ask("api/metrics", { runs: joined(runs) });
export const curves = (runs, metrics, signal) =>
    ask("api/curves", { runs: joined(runs), metrics: joined(metrics) }, signal);
export const prompts = (runs, query, signal) => ask("api/prompts", { runs: joined(runs), query }, signal);
export const prompt = (runs, id, signal) =>
    ask(`api/prompts/${encodeURIComponent(id)}`, { runs: joined(runs) }, signal);
