// What is marked in the text of a response: accepted drafts, what differs from the other one, or each token by a number that
// the store has. Pure: samples in, pieces and sentences out.

import { number, plural, whole } from "../../lib/format.js";
import { difference } from "./diff.js";

const DARKEST = 5; // nats: a probability below 1 % has the full shade
const UNCERTAIN = 2; // nats of entropy with the full shade: as uncertain as seven equal choices
const GIVEN = "of its environment, or not known";
const APART = 0.1; // nats of mismatch with the full shade: probabilities that differ by a tenth

/** value, label, whether it needs two responses. */
export const OVERLAYS = [
    ["drafts", "accepted drafts", false],
    ["difference", "differences", true],
    ["logprob", "log-probabilities", false],
    ["version", "policy versions", false],
    ["trainer", "log-probabilities in training", false],
    ["entropy", "entropy in training", false],
    ["mismatch", "mismatch of trainer and engine", false],
    ["advantage", "advantages", false],
];

export function byToken(kind) {
    return kind !== "drafts" && kind !== "difference";
}

/** {pieces, note} for each of the samples; null where the accepted drafts are shown. */
export function overlays(kind, samples) {
    if (kind === "difference" && samples.length === 2) return differences(samples);
    if (kind === "logprob") return samples.map(logprobs);
    if (kind === "version") return samples.map(versions);
    if (TRAINED[kind]) return samples.map((sample) => trained(sample, kind));
    return samples.map(() => null);
}

function differences(samples) {
    const found = difference(...samples.map(text));
    if (!found)
        return samples.map((sample) =>
            plain(sample, "These responses are too long to be compared word by word."),
        );
    return found.map((pieces) => {
        const count = pieces.filter((piece) => piece.changed).length;
        return { pieces, note: count ? plural(count, "difference") : "The same text in both responses." };
    });
}

function logprobs(sample) {
    if (sample.unknown || !sample.tokens?.length)
        return plain(
            sample,
            `There are no log-probabilities: ${sample.unknown || sample.missing || "none are stored"}.`,
        );
    const known = sample.tokens.map(({ logprob }) => logprob).filter((logprob) => logprob != null);
    const mean = known.reduce((a, b) => a + b, 0) / (known.length || 1);
    return shaded(sample, ({ logprob }) => [
        logprob == null ? 0 : Math.min(1, -logprob / DARKEST),
        logprob == null ? GIVEN : `log-prob ${number(logprob)}, probability ${number(Math.exp(logprob))}`,
        `mean log-prob ${number(mean)} nats per token: the stronger the shade, the less probable`,
    ]);
}

function versions(sample) {
    if (!sample.tokens?.length)
        return plain(sample, sample.unknown || "The tokens of this response are not known.");
    const newest = sample.tokens.reduce((most, { version }) => Math.max(most, version ?? 0), 0);
    const oldest = sample.tokens.reduce((least, { version }) => Math.min(least, version ?? newest), newest);
    return shaded(sample, ({ version }) => [
        newest > oldest ? (newest - (version ?? newest)) / (newest - oldest) : 0,
        version == null ? GIVEN : `policy version ${version}`,
        newest > oldest
            ? `policy versions ${oldest} to ${newest}: the stronger the shade, the older the weights`
            : `all of policy version ${newest}`,
    ]);
}

const TRAINED = {
    trainer: {
        shade: (value) => [-value / DARKEST],
        title: (value) => `log-prob ${number(value)} in the trainer, probability ${number(Math.exp(value))}`,
        note: ({ mean }) =>
            `mean log-prob ${number(mean)} nats per token in the trainer: the stronger the shade, the less probable`,
    },
    entropy: {
        shade: (value) => [value / UNCERTAIN],
        title: (value) => `entropy ${number(value)} nats`,
        note: ({ mean }) =>
            `mean entropy ${number(mean)} nats: the stronger the shade, the less certain the policy was here`,
    },
    mismatch: {
        shade: (value) => [Math.abs(value) / APART, value < 0 ? "minus" : "plus"],
        title: (value) => `mismatch ${number(value)} nats: trainer's log-prob minus the engine's`,
        note: ({ mean, most }) =>
            `mean mismatch ${number(mean)} nats, largest ${number(most)}; blue: more probable in the trainer than in the engine, orange: less`,
    },
    advantage: {
        shade: (value, { most }) => [most ? Math.abs(value) / most : 0, value < 0 ? "minus" : "plus"],
        title: (value) => `advantage ${number(value)}`,
        note: ({ mean }) =>
            `mean advantage ${number(mean)}; blue: training raises the probability of these tokens, orange: it lowers it`,
    },
};

/** What training computed of each token. */
function trained(sample, kind) {
    const values = (sample.tokens ?? []).map((token) => token[kind]).filter((value) => value != null);
    if (!values.length) {
        const why = sample.untrained || sample.missing || "this number is not known";
        return plain(sample, `There is nothing from its training: ${why}.`);
    }
    const all = {
        mean: values.reduce((a, b) => a + b, 0) / values.length,
        most: values.reduce((most, value) => Math.max(most, Math.abs(value)), 0),
    };
    const { shade, title, note } = TRAINED[kind];
    return shaded(sample, (token) => {
        const value = token[kind];
        const [strength, sign] = value == null ? [0] : shade(value, all);
        const words = `${note(all)} (policy version ${sample.trained_version})`;
        return [Math.min(1, strength), value == null ? "not known" : title(value), words, sign];
    });
}

/** `of(token)`: its shade, its title, the sentence about all tokens, and its sign, if it has one. */
function shaded(sample, of) {
    const pieces = sample.tokens.map((token) => {
        const [shade, title, , sign] = of(token);
        return { text: token.text, shade, title, sign };
    });
    const shown = pieces.reduce((sum, piece) => sum + piece.text.length, 0);
    const rest = text(sample).slice(shown);
    const cut = rest ? `; of its first ${whole(pieces.length)} tokens` : "";
    return { pieces: rest ? [...pieces, { text: rest }] : pieces, note: of(sample.tokens[0])[2] + cut };
}

/** Nothing is marked. */
function plain(sample, note) {
    return { pieces: [{ text: text(sample) }], note };
}

function text(sample) {
    return (sample.pieces ?? []).map((piece) => piece.text).join("");
}
