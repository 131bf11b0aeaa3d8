// The weights of a row fall onto the numbers of e4m3; what each part of 8 bits costs the output; what long sums lose.

import { h } from "./svg.js";
import { digits, grouped, times } from "./words.js";
import { WIDE, bars, knob, label, rule } from "./marks.js";

const LOW = -9.6; // start of the axis, as a power of two: the smallest number is 2^-9
const HIGH = 8.95; // end of the axis: the largest number is 448
const HIGHEST = 120; // the height of the highest pile of weights
const COLUMN = 52; // height of the largest column of K with the largest outlier
const OCTAVES = 8; // of the axis of columns
const OUTLIERS = 16; // the largest factor
const TICKS = [2 ** -9, 2 ** -6, 2 ** -3, 1, 8, 64, 448];
const LOST = [1e-5, 0.3]; // shares on the axis of sums

export function draw({ trace, state, step, width }) {
  const wide = width >= WIDE;
  const below = 40 + HIGHEST + 74;
  const panel = wide ? width / 2 - 20 : width;
  const errors = { x: 0, y: below, width: panel };
  const columns = { x: 0, y: below + 138, width: panel };
  const sums = wide ? { x: width / 2 + 20, y: below, width: panel } : { x: 0, y: below + 248, width: panel };
  return {
    height: sums.y + 234,
    nodes: [
      h("g", { key: "line" }, numberLine({ trace, step, width })),
      h(
        "g",
        { key: "errors", class: "compared" },
        costs({ trace, step, ...errors }),
        columnsOf({ trace, state, ...columns }),
      ),
      h("g", { key: "sums", class: "compared" }, long({ trace, ...sums })),
    ],
  };
}

const percent = (share) => `${digits(100 * share, 3)}%`;
const power = (number) =>
  number >= 1
    ? String(number)
    : `2${Array.from(String(Math.log2(number)), (sign) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[sign] ?? "⁻").join("")}`;

// The positive numbers, a stroke for each, on a logarithmic axis, and on each number a pile of the weights that fell
// there, as high as their count. Beside them, the share of all weights that became 0.
function numberLine({ trace, step, width }) {
  const now = trace.steps[step];
  const zero = Math.max(44, 0.06 * width);
  const left = zero + 66;
  const x = (number) => left + ((Math.log2(number) - LOW) / (HIGH - LOW)) * (width - left);
  const bottom = 40 + HIGHEST;
  const bar = Math.max(2, (x(1.125) - x(1)) * 0.62);
  const counts = trace.steps.flatMap((one) => one.counts.map(([, count]) => count));
  const most = Math.max(...counts);
  const scale = HIGHEST / most; // pixels per weight
  const marks = [25, 50, 100].filter((count) => count <= most).slice(-2);
  const lost = now.zeros ? `what became 0 is ${percent(now.vanished)} of the sum` : "none became 0";
  const off = width > 500 && `the output of “${trace.token}” is off by ${percent(now.row)}`;
  const strokes = trace.numbers.slice(1).map((number) => `M${Math.round(10 * x(number)) / 10} ${bottom + 2}v8`);
  const small = { x: left, y: bottom - HIGHEST, width: x(2 ** -6) - left, height: HIGHEST };
  const tick = (number) => ({ size: 12, anchor: number > 400 ? "end" : "middle", fill: "var(--grey)" });
  return [
    label(0, 10, `The ${trace.N} weights of “${trace.token}” × ${now.largest}, in e4m3`, { weight: 650 }),
    h("rect", { key: "subnormal", ...small, fill: "var(--slow)", "fill-opacity": 0.22 }),
    small.width > 100 &&
      label(x(2 ** -6), bottom - HIGHEST - 10, "subnormal", { size: 12, anchor: "end", fill: "var(--grey)" }),
    marks.map((count) => [
      rule(left, width, bottom - count * scale, { color: "var(--pale)", key: `count ${count}` }),
      label(width, bottom - count * scale + 9, `${count} weights`, { size: 12, anchor: "end", fill: "var(--grey)" }),
    ]),
    vanished({ now, all: trace.N, width: zero, bottom }),
    now.counts.map(([code, count]) => {
      const number = trace.numbers[code];
      return pile({ trace, code, count, number, x: x(number), width: bar, bottom, high: count * scale });
    }),
    h("path", { key: "strokes", d: strokes.join(""), stroke: "var(--ink)", "stroke-width": 1 }),
    rule(left, width, bottom + 1, { color: "var(--grey)", key: "axis" }),
    TICKS.map((number) => label(x(number), bottom + 22, power(number), tick(number))),
    label(zero / 2, bottom + 22, "0", { anchor: "middle", weight: 650 }),
    label(0, bottom + 44, [lost, off].filter(Boolean).join("; "), { fill: "var(--grey)" }),
  ];
}

// The weights that became one number.
function pile({ trace, code, count, number, x, width, bottom, high }) {
  const tip = {
    title: `${digits(number, 5)}, a number of e4m3`,
    lines: [
      `${times(count, "weight")} of “${trace.token}” became it`,
      number < 2 ** -6
        ? "subnormal: fewer than 3 bits of mantissa"
        : "the next one is an eighth of a power of two away",
    ],
  };
  const bar = { x: x - width / 2, y: bottom - high, width, height: high, fill: "var(--P)", class: "grow" };
  return h("g", { key: `pile ${code}`, tip }, h("rect", bar));
}

// The weights that became 0, as a part of all weights: on an axis of its own, as they are far more than on any number.
function vanished({ now, all, width, bottom }) {
  const tip = {
    title: `${now.zeros} of ${all} weights became 0`,
    lines: [`${percent(now.vanished)} of the row's sum is lost`, "they were 2⁻¹⁰ or less"],
  };
  const high = (now.zeros / all) * HIGHEST;
  const room = { x: 0, y: bottom - HIGHEST, width, height: HIGHEST, fill: "transparent" };
  return h(
    "g",
    { key: "gone", tip },
    label(0, bottom - HIGHEST - 10, `${now.zeros} of ${all} become 0`, { size: 12, fill: "var(--wrong)" }),
    h("rect", { ...room, stroke: "var(--grey)", "stroke-dasharray": "3 3" }),
    [all / 2, 0].map((count) => {
      const y = bottom - (count / all) * HIGHEST;
      const look = { size: 12, fill: "var(--grey)" };
      return [rule(width, width + 5, y, { color: "var(--grey)" }), label(width + 9, y, String(count), look)];
    }),
    h("rect", { x: 0, y: bottom - high, width, height: high, fill: "var(--wrong)", class: "grow" }),
  );
}

// Errors of the output, from each part alone and from all together.
function costs({ trace, step, x, y, width }) {
  const { errors } = trace.steps[step];
  const whole = Math.max(0.1, 1.02 * errors.all);
  const space = 66;
  const room = width - space - 70;
  const about = {
    "Q, K": "Q and K in 8 bits, all else exact",
    V: "V in e4m3, all else exact",
    weights: "weights in e4m3, all else exact",
    all: "everything in 8 bits, products exact",
  };
  const color = { "Q, K": "Q", V: "V", weights: "P", all: "O" };
  const rows = Object.keys(about).map((name) => ({
    name,
    parts: [{ value: Math.min(errors[name], whole), color: `var(--${color[name]})` }],
    words: percent(errors[name]),
    tip: { title: `error of O: ${percent(errors[name])}`, lines: [about[name], "relative to O, over all rows"] },
  }));
  return [
    label(x, y + 10, "Error of O, part by part", { weight: 650 }),
    bars({ x, y: y + 28, rows, scale: room / whole, row: 24, key: "error", space }),
  ];
}

// The largest number of each column of K, on a logarithmic axis. The outlier's can be pulled.
function columnsOf({ trace, state, x, y, width }) {
  const { columns } = trace;
  const floor = y + 20 + COLUMN;
  const most = (Math.max(...columns) / state.outlier) * OUTLIERS; // with the largest outlier: one axis for all
  const high = (number) => Math.max(1, (1 + Math.log2(number / most) / OCTAVES) * COLUMN);
  const unit = width / columns.length;
  const largest = columns.indexOf(Math.max(...columns));
  const factor = (point) => 2 ** (((floor - point.y) / COLUMN - 1) * OCTAVES) * OUTLIERS;
  return [
    label(x, y, width > 340 ? "Largest |K| of each column (logarithmic)" : "Largest |K| of each column", {
      weight: 650,
    }),
    columns.map((number, at) =>
      h("rect", {
        key: `column ${at}`,
        x: x + at * unit + 1,
        y: floor - high(number),
        width: unit - 2,
        height: high(number),
        fill: "var(--K)",
        class: "grow",
        tip: {
          title: `column ${at} of K: ${digits(number, 3)} at most`,
          lines: ["a scale for the head covers all columns"],
        },
      }),
    ),
    rule(x, x + width, floor, { color: "var(--grey)", key: "floor" }),
    knob({
      key: "outlier",
      x: x + (largest + 0.5) * unit,
      y: floor - high(columns[largest]),
      tip: { title: `one column of K × ${state.outlier}`, lines: ["pull it up"] },
      drag: { field: "outlier", name: "one column of K", to: (point) => ({ outlier: factor(point) }) },
    }),
  ];
}

// What an accumulator of 14 bits loses of a sum of positive numbers, against its length, on logarithmic axes.
function long({ trace, x, y, width }) {
  const chart = { left: x + 52, top: y + 34, width: width - 52 - 90, height: 170 };
  const bottom = chart.top + chart.height;
  const [first, last] = [trace.lengths[0], trace.lengths.at(-1)];
  const px = (N) => chart.left + (Math.log(N / first) / Math.log(last / first)) * chart.width;
  const py = (share) => bottom - (Math.log(share / LOST[0]) / Math.log(LOST[1] / LOST[0])) * chart.height;
  const lines = trace.sums.map(({ flush, lost }, at) => {
    const name = flush === null ? "no flush" : `every ${grouped(flush)}`;
    const points = lost.map((share, place) => [px(trace.lengths[place]), py(share), share, trace.lengths[place]]);
    const color = flush === null ? "var(--wrong)" : "var(--fast)";
    return h(
      "g",
      { key: `sum ${name}` },
      h("path", {
        d: `M${points.map(([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`).join("L")}`,
        fill: "none",
        stroke: color,
        "stroke-width": 2,
        "stroke-dasharray": ["none", "8 3", "5 3", "2 3"][at],
      }),
      points.map(([a, b, share, N]) =>
        h("circle", {
          key: `point ${N}`,
          cx: a,
          cy: b,
          r: 4,
          fill: color,
          tip: {
            title: `${grouped(N)} keys, ${flush === null ? "never flushed" : `flushed ${name}`}`,
            lines: [`${percent(share)} of the sum is lost`],
          },
        }),
      ),
      label(chart.left + chart.width + 10, points.at(-1)[1], name, {
        size: 12,
      }),
    );
  });
  return [
    label(x, y + 10, width > 400 ? "What 14 bits lose of a sum, by its keys" : "What 14 bits lose of a sum", {
      weight: 650,
    }),
    h("path", {
      d: `M${chart.left} ${chart.top}V${bottom}H${chart.left + chart.width}`,
      fill: "none",
      stroke: "var(--grey)",
    }),
    [1e-4, 1e-3, 1e-2, 1e-1].map((share) => [
      rule(chart.left - 5, chart.left + chart.width, py(share), { color: "var(--pale)", key: `rule ${share}` }),
      label(chart.left - 8, py(share), percent(share), { anchor: "end", size: 12, fill: "var(--grey)" }),
    ]),
    [1024, 8192, 65536].map((N) =>
      label(px(N), bottom + 15, `${N / 1024}K`, { anchor: "middle", size: 12, fill: "var(--grey)" }),
    ),
    label(chart.left + chart.width + 10, bottom + 15, "keys", { size: 12, fill: "var(--grey)" }),
    lines,
  ];
}
