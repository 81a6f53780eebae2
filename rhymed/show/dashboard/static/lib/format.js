// Numbers and names as text, with units. Pure. A missing number is a dash.

const DASH = "–";
const FAILED = "run failed: "; // start of the text of a failed run's last event (rhymed.core.run.timeline)
export const EVALUATION = 2 ** 30; // the step EVALUATION + v is the evaluation of version v

export function known(value) {
    return typeof value === "number" && Number.isFinite(value);
}

/** Three or four significant digits; thousands as k, M, G, T. */
export function number(value) {
    if (!known(value)) return DASH;
    const size = Math.abs(value);
    if (size >= 1e15) return value.toExponential(2);
    for (const [limit, letter] of [
        [1e12, "T"],
        [1e9, "G"],
        [1e6, "M"],
        [1e4, "k"],
    ]) {
        if (size >= limit) return short(value / (limit === 1e4 ? 1e3 : limit), 3) + letter;
    }
    if (Number.isInteger(value) || size >= 100) return whole(value);
    if (size >= 0.01) return short(value, 3);
    return size === 0 ? "0" : value.toExponential(1).replace("e-", "e−").replace("e+", "e");
}

export function whole(value) {
    return known(value) ? Math.round(value).toLocaleString("en-US") : DASH;
}

export function percent(value) {
    if (!known(value)) return DASH;
    const share = value * 100;
    if (share > 0 && share < 0.05) return "<0.1 %";
    return `${share !== 0 && Math.abs(share) < 10 ? Number(share.toFixed(1)) : share.toFixed(0)} %`;
}

export function seconds(value) {
    if (!known(value)) return DASH;
    if (value < 0.0995 && value > 0) return `${short(value * 1000, 2)} ms`;
    if (value < 99.5) return `${short(value, 3)} s`;
    const minutes = Math.round(value / 60);
    if (value < 3600) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
    if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
    return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

/** Seconds that are still growing: no finer than tenths. */
export function age(value) {
    return known(value) ? seconds(Math.round(value * 10) / 10) : DASH;
}

export function bytes(value) {
    if (!known(value)) return DASH;
    for (const [limit, unit] of [
        [2 ** 40, "TiB"],
        [2 ** 30, "GiB"],
        [2 ** 20, "MiB"],
        [2 ** 10, "KiB"],
    ]) {
        if (value >= limit) return `${short(value / limit, 3)} ${unit}`;
    }
    return `${whole(value)} B`;
}

export function clock(unix) {
    return known(unix) ? new Date(unix * 1000).toLocaleTimeString([], { hourCycle: "h23" }) : DASH;
}

export function date(unix) {
    return known(unix)
        ? new Date(unix * 1000).toLocaleString([], {
              dateStyle: "medium",
              timeStyle: "short",
              hourCycle: "h23",
          })
        : DASH;
}

/** The unit of a metric, as in docs/metrics.md. */
export function unit(name) {
    if (name.startsWith("timing_s/") || (/_s$/.test(name) && !name.endsWith("per_s"))) return "s";
    if (name.endsWith("tokens_per_s")) return "tokens/s";
    if ((name.startsWith("response_length/") && !name.endsWith("ratio")) || /\/response_length\//.test(name))
        return "tokens";
    if (/(_rate|_ratio|flat_groups|clipfrac)$/.test(name) || /\/acc\//.test(name)) return "share";
    if (name.startsWith("staleness/")) return "steps";
    if (/(entropy|\/kl|mismatch_kl\/mean)$/.test(name)) return "nats/token";
    if (/(tokens|spec_drafted|spec_accepted|accept_length)$/.test(name)) return "tokens";
    if (/(samples|filtered|dropped|moved)$/.test(name)) return "samples";
    if (/_groups$/.test(name)) return "groups";
    return "";
}

export function withUnit(value, of) {
    if (!known(value)) return DASH;
    if (of === "share") return percent(value);
    if (of === "s") return seconds(value);
    if (of === "bytes") return bytes(value);
    if (!of || of === "×") return number(value) + (of ?? "");
    return `${number(value)} ${number(value) === "1" && !of.includes("/") ? of.replace(/s$/, "") : of}`;
}

/** The name of a step: people count from 1; evaluations and imports have no number. */
export function stepName(step) {
    if (step >= EVALUATION) return `eval v${step - EVALUATION}`;
    if (step < 0) return "imported";
    return `step ${step + 1}`;
}

/** The id of a sample as people and commands write it: that of an evaluation with its version. */
export function sampleId(id) {
    return id.replace(/^\d+/, (step) => (step >= EVALUATION ? `eval-v${step - EVALUATION}` : step));
}

/** The name of an epoch, which data count from 0 and people from 1. */
export function epochName(epoch) {
    return known(epoch) ? `epoch ${whole(epoch + 1)}` : DASH;
}

/** An event of the timeline in words, without its time. */
export function eventText({ event, worker, step, text }) {
    const words =
        {
            trained: `step ${step + 1} trained, version ${step + 1}`,
            evaluated: `version ${step} evaluated`,
        }[event] ??
        (worker ? `${worker} ${event}` : event === "begun" || event === "finished" ? `run ${event}` : event);
    if (text?.startsWith(FAILED)) return text;
    return text ? `${words}: ${text}` : words;
}

export function plural(count, noun) {
    return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
}

export function capital(text) {
    return text.slice(0, 1).toUpperCase() + text.slice(1);
}

/** With that many significant digits, without trailing zeros. */
function short(value, digits) {
    return String(Number(value.toPrecision(digits)));
}
