// A row of scores above. Below is what is kept of them: e^(s - m), which shrinks by alpha when the maximum rises.

import { h } from "./svg.js";
import { digits } from "./words.js";
import { WIDE, at, knob, label, lines, rule } from "./marks.js";

const SCORES = 130; // height of the scores
const KEPT = 150; // height of e^0
const SIDE = 332; // width of the update in numbers
const STACK = 56; // width of ℓ, before or now
const TIMES = 70; // room between both

export function draw({ trace, state, step, width }) {
  const divided = step === trace.steps.length;
  const now = trace.steps[Math.min(step, trace.steps.length - 1)];
  const before = trace.steps[divided ? step - 1 : Math.max(step - 1, 0)];
  const wide = width >= WIDE;
  const left = 34;
  const chart = { left, width: (wide ? width - SIDE - 28 : width) - left - 8, count: trace.tokens.length };
  const column = (at) => chart.left + (at * chart.width) / chart.count;
  const unit = chart.width / chart.count;
  const scores = { top: 46, high: SCORES };
  const kept = { top: scores.top + SCORES + 66, high: KEPT };
  const bottom = kept.top + kept.high;
  const words = bottom + 74;
  const block = [
    h("rect", {
      key: "block",
      x: column(now.new[0]),
      y: scores.top - 8,
      width: divided ? 0 : column(now.new[1]) - column(now.new[0]),
      height: bottom - scores.top + 8,
      fill: "var(--pale)",
      "fill-opacity": 0.55,
      class: "grow",
    }),
  ];
  const side = wide ? { x: width - SIDE, y: 46, width: SIDE } : { x: 0, y: words + 30, width };
  return {
    height: wide ? words : side.y + 356,
    nodes: [
      label(0, 10, trace.title, { weight: 650, size: 15 }),
      block,
      h("g", { key: "scores" }, scoresOf({ trace, state, now, column, unit, ...scores, chart })),
      h(
        "g",
        { key: "kept", class: "compared" },
        weightsOf({ trace, now, before, divided, column, unit, ...kept, chart }),
      ),
      h(
        "g",
        { key: "tokens" },
        trace.tokens.map((token, at) =>
          label(column(at + 0.5) + 4, bottom + 14, token, {
            anchor: "end",
            size: 12,
            rotate: -55,
            fill: at < now.new[1] ? "var(--ink)" : "var(--grey)",
          }),
        ),
      ),
      h("g", { key: "side", class: "compared" }, sideOf({ trace, now, before, step, divided, ...side })),
    ],
  };
}

function scoresOf({ trace, state, now, column, unit, top, high, chart }) {
  const [low, most] = trace.limits;
  const y = (score) => top + ((most - score) / (most - low)) * high;
  const back = (place) => most - ((place - top) / high) * (most - low);
  return [
    label(0, top - 12, "scores s", { fill: "var(--grey)" }),
    rule(chart.left, chart.left + chart.width, y(0), { color: "var(--grey)" }),
    label(chart.left - 6, y(0), "0", { anchor: "end", size: 12 }),
    trace.scores.map((score, at) => scoreOf({ trace, score, at, come: at < now.new[1], y, left: column(at), unit })),
    now.m === null ? [] : [maximumOf({ trace, m: now.m, y: y(now.m), ...chart })],
    largestOf({ trace, state, y, x: column(trace.largest + 0.5), score: back }),
  ];
}

function scoreOf({ trace, score, at, come, y, left, unit }) {
  const key = `score ${at}`;
  if (score === null) {
    const look = { anchor: "middle", size: 12, key, rotate: unit < 18 ? -90 : undefined };
    return label(left + 0.5 * unit, y(0) - 10, "−∞", look);
  }
  const lines = [`s = ${digits(score)}`, come ? "has come, and is forgotten" : "not here yet"];
  return h("rect", {
    key,
    x: left + 0.12 * unit,
    y: Math.min(y(score), y(0)),
    width: 0.76 * unit,
    height: Math.max(Math.abs(y(score) - y(0)), 1),
    fill: come ? "var(--S)" : "var(--paper)",
    stroke: come ? "var(--S)" : "var(--grey)",
    "stroke-dasharray": come ? undefined : "2 2",
    tip: { title: `score of ${trace.tokens[at]}`, lines },
  });
}

function maximumOf({ trace, m, y, left, width }) {
  const tip = { title: "the running maximum", lines: [`m = ${digits(m)}`], code: trace.code.m };
  return h(
    "g",
    { key: "m", class: "mark", style: at(0, y), tip },
    rule(left, left + width, 0, { dash: true }),
    h("rect", { x: left, y: -8, width, height: 16, fill: "transparent" }),
    label(left + width, -14, `m = ${digits(m)}`, { weight: 600, anchor: "end" }),
  );
}

// The end of the largest score, to pull up and down. score: the score at a height on the page.
function largestOf({ trace, state, y, x, score }) {
  const now = trace.scores[trace.largest];
  return knob({
    key: "largest",
    x,
    y: y(now),
    tip: { title: `score of ${trace.tokens[trace.largest]}: ${digits(now)}`, lines: ["pull it up or down"] },
    drag: {
      field: "lift",
      name: "the largest score",
      to: (point) => ({ lift: score(point.y) - now + state.lift }),
    },
  });
}

function weightsOf({ trace, now, before, divided, column, unit, top, high, chart }) {
  const y = (value) => top + (1 - value) * high;
  const place = (at) => ({ x: column(at) + 0.12 * unit, width: 0.76 * unit });
  const heights = divided ? trace.weights : now.P;
  const past = divided ? now.P : before.P;
  const factor = divided ? `1 / ℓ = 1 / ${digits(now.l)}` : `alpha = ${digits(now.alpha)}`;
  const ghosts = past.map(
    (value, at) =>
      value > heights[at] + 1e-9 &&
      h("rect", {
        key: `ghost ${at}`,
        ...place(at),
        y: y(value),
        height: value * high,
        fill: "none",
        stroke: "var(--grey)",
        "stroke-dasharray": "3 3",
      }),
  );
  const bars = heights.map((value, at) =>
    h("rect", {
      key: `kept ${at}`,
      ...place(at),
      y: y(value),
      height: Math.max(value * high, 0.5),
      fill: "var(--P)",
      class: "grow",
      from: { y: y(0), height: 0.5 },
      tip: divided ? weightTip({ trace, now, at }) : keptTip({ trace, at, value, old: past[at], factor }),
    }),
  );
  const right = chart.left + chart.width;
  return [
    label(0, top - 30, divided ? "divided by ℓ, once: the softmax" : "kept: e^(s − m)", { fill: "var(--grey)" }),
    !divided &&
      before.m !== null &&
      now.alpha < 1 &&
      label(right, top - 30, `the past × ${factor}`, { anchor: "end", weight: 650, fill: "var(--O)" }),
    rule(chart.left, right, y(1), { color: "var(--pale)" }),
    rule(chart.left, right, y(0), { color: "var(--grey)" }),
    label(chart.left - 6, y(1), "1", { anchor: "end", size: 12 }),
    label(chart.left - 6, y(0), "0", { anchor: "end", size: 12 }),
    ghosts,
    bars,
  ];
}

const weightTip = ({ trace, now, at }) => ({
  title: trace.tokens[at],
  lines: [
    `weight ${digits(trace.weights[at])}`,
    `e^(s − m) = ${digits(now.P[at])}, divided by ℓ = ${digits(now.l)}`,
    `the softmax of the whole row says ${digits(trace.softmax[at])}`,
  ],
  code: trace.code.divide,
});

const keptTip = ({ trace, at, value, old, factor }) => ({
  title: trace.tokens[at],
  lines: [
    `e^(s − m) = ${digits(value)}`,
    old === undefined ? "new in this block" : `it was ${digits(old)}, times ${factor}`,
  ],
  code: old === undefined ? trace.code.P : trace.code.alpha,
});

// ℓ before and after the block as stacks of weights, and the update in numbers.
function sideOf({ trace, now, before, step, divided, x, y, width }) {
  const high = 170;
  const bottom = y + 24 + high;
  const outputs = [0, ...trace.steps.map(({ O }) => O)];
  const [low, most] = [Math.min(...outputs), Math.max(...outputs)];
  const floor = bottom - high * Math.min(0.4, -low / (most - low || 1)); // zero of ℓ and O; O may be negative
  const scale = (high - bottom + floor) / (Math.max(...trace.steps.map((one) => one.l)) || 1);
  const unit = Math.min((high - bottom + floor) / most, low < 0 ? (bottom - floor) / -low : Infinity);
  const wide = STACK;
  const second = x + STACK + TIMES;
  const shared = { floor, bottom, scale, wide, code: trace.code.l, tokens: trace.tokens };
  return [
    label(x, y - 36, "all that is kept of the row: m, ℓ, O", { weight: 650, size: 15 }),
    rule(x, x + width, floor, { color: "var(--grey)" }),
    !divided && stackOf({ ...shared, name: "before", left: x, kept: before, fresh: Infinity }),
    stackOf({ ...shared, name: "now", left: second, kept: now, fresh: now.new[0] }),
    !divided &&
      step > 0 &&
      before.m !== null &&
      label((x + wide + second) / 2, bottom - high / 2, `× ${digits(now.alpha)}`, {
        anchor: "middle",
        weight: 650,
        fill: now.alpha < 1 ? "var(--O)" : "var(--grey)",
      }),
    outputOf({ trace, before, now, divided, x: second + wide + 14, end: x + width, floor, bottom, unit }),
    lines(x, bottom + 62, updateOf({ trace, now, before, step, divided }), { gap: 1.6 }),
  ];
}

// The weights that are kept, one on top of the other. fresh: the first token of the block.
function stackOf({ name, left, kept, fresh, floor, bottom, scale, wide, code, tokens }) {
  let up = floor;
  const moves = name === "now"; // the stack of before does not change in this step
  const parts = kept.P.map((value, at) => {
    up -= value * scale;
    return h("rect", {
      key: `${name} ${at}`,
      x: left,
      y: up,
      width: wide,
      height: value * scale,
      fill: "var(--P)",
      "fill-opacity": at >= fresh ? 1 : 0.55,
      stroke: "var(--paper)",
      "stroke-width": 0.7,
      class: moves ? "grow" : undefined,
      tip: { title: `ℓ ${name}: ${digits(kept.l)}`, lines: [`${tokens[at]} adds ${digits(value)}`], code },
    });
  });
  return [
    parts,
    numberOf({ key: `ℓ ${name}`, x: left + wide / 2, y: up - 12, value: kept.l, moves }),
    label(left + wide / 2, bottom + 14, `ℓ ${name}`, { anchor: "middle", fill: "var(--grey)" }),
  ];
}

// A number above its bar. It moves with the bar.
const numberOf = ({ key, x, y, value, moves }) =>
  h(
    "g",
    { key, class: moves ? "mark" : undefined, style: at(x, y) },
    label(0, 0, digits(value), { anchor: "middle", weight: 600, size: 12 }),
  );

// One column of O before and after the block, up or down from 0; at the end divided by ℓ. unit: pixels per 1.
function outputOf({ trace, before, now, divided, x, end, floor, bottom, unit }) {
  const half = (end - x) / 2;
  const bar = (name, O, left) => {
    const moves = name === "now";
    const top = floor - Math.max(O, 0) * unit;
    const title = divided ? "O / ℓ" : `O ${name}`;
    const about = divided ? "weights times values" : "weights e^(s − m) times values, not yet divided";
    return [
      h("rect", {
        key: `O ${name}`,
        x: left + half / 2 - 13,
        y: top,
        width: 26,
        height: Math.max(Math.abs(O) * unit, 1),
        fill: "var(--O)",
        "fill-opacity": moves ? 1 : 0.4,
        class: moves ? "grow" : undefined,
        tip: { title: `${title}: ${digits(O)}`, lines: [about] },
      }),
      numberOf({ key: `number ${name}`, x: left + half / 2, y: top - 12, value: O, moves }),
      label(left + half / 2, bottom + 14, divided ? title : name, { anchor: "middle", fill: "var(--grey)" }),
    ];
  };
  return [
    !divided && bar("before", before.O, x),
    bar("now", divided ? trace.output : now.O, x + half),
    label(end, bottom + 32, "O, one column of V", { anchor: "end", fill: "var(--grey)" }),
  ];
}

// The update in numbers, line by line.
function updateOf({ trace, now, before, step, divided }) {
  const n = digits;
  const plus = (value) => (value < 0 ? `− ${n(-value)}` : `+ ${n(value)}`);
  const factor = (value) => (value === null || value < 0 ? `(${n(value)})` : n(value));
  if (divided) return ["all blocks have come:", `O / ℓ = ${n(now.O)} / ${n(now.l)}`, `      = ${n(trace.output)}`];
  if (step === 0) return ["nothing has come:", "m = −∞, ℓ = 0, O = 0"];
  return [
    `m: ${n(before.m)} → ${n(now.m)}`,
    `alpha = e^(${n(before.m)} − ${factor(now.m)}) = ${n(now.alpha)}`,
    `ℓ = ${n(now.alpha)} · ${n(before.l)} ${plus(now.added[0])} = ${n(now.l)}`,
    `O = ${n(now.alpha)} · ${factor(before.O)} ${plus(now.added[1])} = ${n(now.O)}`,
  ];
}
