// uPlot's options of a chart: scales, axes, lines. Pure: a chart's options and its curves in, uPlot's options out.

import { bytes, known, number } from "../lib/format.js";
import { colour } from "../lib/theme.js";

const HEIGHT = 190;
const GRID = 0.6;
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const WHOLE = [1, 2, 5]
    .flatMap((digit) => Array.from({ length: 9 }, (_, power) => digit * 10 ** power))
    .sort((a, b) => a - b);

/** `log`: the scale is logarithmic; `hidden`: labels of the curves that are switched off. */
export function plotOptions(options, curves, { log, hidden }) {
    const { group } = options;
    const range = log ? undefined : (u, min, max) => padded(min, max, options);
    return {
        height: options.height ?? HEIGHT,
        legend: { show: false },
        cursor: {
            drag: { x: true, y: false, setScale: false },
            y: false,
            points: { size: 7 },
            ...(group ? { sync: { key: group.key, scales: ["x", null] } } : {}),
        },
        scales: {
            x: {
                time: false,
                range: (u, min, max) =>
                    u.data[0].length === 1 ? [u.data[0][0] - 0.5, u.data[0][0] + 0.5] : [min, max],
            },
            y: { distr: log ? 3 : 1, range },
        },
        axes: [
            axis({
                size: 26,
                space: 56,
                ...(options.whole === false ? {} : { incrs: WHOLE }),
                values: (u, ticks) => ticks.map(number),
            }),
            yAxis(options, curves),
        ],
        series: [{}, ...curves.map((curve) => line(options, curve, !hidden.has(curve.label)))],
        bands: options.stack ? curves.slice(1).map((_, i) => ({ series: [i + 2, i + 1] })) : [],
    };
}

/** So few values that a line would not be visible. */
export function few(curve) {
    return curve.values.filter(known).length < 3;
}

function axis(more) {
    return {
        stroke: () => colour("--muted"),
        grid: { stroke: () => colour("--grid"), width: GRID },
        ticks: { show: false },
        font: `11px ${getComputedStyle(document.body).fontFamily}`,
        ...more,
    };
}

function yAxis(options, curves) {
    const unit = curves[0].unit ?? options.unit;
    return axis({
        scale: "y",
        size: 50,
        ...(unit === "bytes" ? { incrs: POWERS } : {}),
        values: (u, ticks) => ticks.map((tick) => (tick == null ? "" : tickText(tick, unit))),
    });
}

function line(options, curve, shown) {
    return {
        scale: "y",
        label: curve.label,
        show: shown,
        stroke: () => colour(curve.colour),
        width: curve.width ?? 1.75,
        dash: curve.dash,
        fill: options.stack ? () => `${colour(curve.colour)}a0` : undefined,
        points: { show: curve.points || few(curve), size: 6, fill: () => colour(curve.colour) },
        spanGaps: true,
    };
}

/** Some space above and below; from 0 where the values are near 0 or the chart asks for it. */
function padded(min, max, { stack, zero }) {
    if (min == null || (min === 0 && max === 0)) return [0, 1]; // an axis to 0.06 would make 0 look like a number
    const size = max - min || Math.abs(max) || 1;
    const low = stack || zero || (min >= 0 && min < 0.4 * max) ? Math.min(0, min) : min - size * 0.08;
    return [low, max + (max - low || 1) * 0.06];
}

function tickText(value, unit) {
    if (unit === "share") return `${number(value * 100)} %`;
    return unit === "bytes" ? bytes(value) : number(value).replace(".0e", "e");
}

/** Thin lines where epochs begin, for charts over steps; `epochs` is called at every drawing. */
export function boundaries(epochs, most = 40) {
    return (u, pen) => {
        const begins = epochs()
            .slice(1)
            .map((epoch) => epoch.first_step + 0.5);
        if (begins.length > most) return;
        pen.save();
        pen.strokeStyle = colour("--edge");
        pen.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
        for (const begin of begins) {
            const x = Math.round(u.valToPos(begin, "x", true));
            if (x <= u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
            pen.beginPath();
            pen.moveTo(x, u.bbox.top);
            pen.lineTo(x, u.bbox.top + u.bbox.height);
            pen.stroke();
        }
        pen.restore();
    };
}
