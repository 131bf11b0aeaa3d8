// Above, the windows of three dtypes, and the scores to drag through them. Below, softmax, and each shift's outcome.

import { h } from "./svg.js";
import { digits, fits } from "./words.js";
import { WIDE, at, label, rule } from "./marks.js";

const LOW = -190; // start of the axis of exponents
const HIGH = 130;
const LANE = 66; // height of a dtype's window
const STRIP = 28; // height of a dtype's outcomes
const BARS = 96; // height of a weight of 1
const DOT = 10; // diameter of a dot

const EXP = {
  n: { words: "a number", shape: { fill: "var(--P)", rx: DOT / 2 } },
  s: {
    words: "subnormal: few digits",
    shape: { fill: "var(--S)", rx: DOT / 2, stroke: "var(--ink)", "stroke-dasharray": "2 2" },
  },
  0: { words: "0", shape: { fill: "var(--paper)", rx: DOT / 2, stroke: "var(--ink)", "stroke-width": 1.5 } },
  i: { words: "∞", shape: { fill: "var(--wrong)", stroke: "var(--ink)", transform: "rotate(45)" } },
};

// The place of an outcome also tells it: overflow is in the upper half, underflow in the lower one.
const OUTCOMES = {
  right: { from: 0, to: 1, short: "right", on: "var(--on-fast)", fill: "var(--fast)" },
  "digits lost": { from: 0, to: 1, short: "", fill: "var(--fast)", opacity: 0.3, few: true },
  "zeros: 1 / ∞": { from: 0, to: 1, short: "", fill: "var(--paper)", stroke: "var(--ink)" },
  "NaN: ∞ / ∞": { from: 0, to: 0.5, short: "∞/∞", on: "var(--paper)", fill: "var(--wrong)" },
  "NaN: 0 / 0": { from: 0.5, to: 1, short: "0/0", on: "var(--on-standard)", fill: "var(--standard)" },
};

export function draw({ trace, state, width }) {
  const wide = width >= WIDE;
  const half = wide ? width * 0.46 : width;
  const top = lanesOf({ trace, state, width, wide });
  const bars = barsOf({ trace, state, x: 0, y: top.bottom + 30, width: half });
  const map = mapOf({
    trace,
    state,
    x: width - half,
    y: wide ? top.bottom + 30 : bars.bottom + 40,
    width: half,
    legend: wide ? 0 : width - half,
  });
  return { height: Math.max(bars.bottom, map.bottom) + 12, nodes: [top.nodes, bars.nodes, map.nodes] };
}

function lanesOf({ trace, state, width, wide }) {
  const left = wide ? 78 : 0;
  const x = (exponent) => left + ((exponent - LOW) / (HIGH - LOW)) * (width - left);
  const back = (place) => LOW + ((place - left) / (width - left)) * (HIGH - LOW);
  const step = LANE + (wide ? 26 : 54);
  const lanes = trace.lanes.map((lane, row) =>
    laneOf({ trace, state, lane, x, back, wide, y: (wide ? 34 : 52) + row * step }),
  );
  const axis = (wide ? 34 : 52) + 2 * step + LANE + 26;
  const title = wide
    ? "Drag the dots: eight scores, minus the shift, on their way into exp"
    : "Drag the dots: scores minus the shift";
  const key = legendOf(
    wide ? left : 0,
    axis + (wide ? 38 : 64),
    wide ? width : 240,
    Object.entries(EXP).map(([kind, { words }]) => [`exp is ${words}`, (mark) => dot(kind, mark)]),
  );
  return {
    bottom: key.bottom,
    nodes: [
      label(0, 10, title, { weight: 650, size: 15 }),
      lanes,
      rule(x(LOW), x(HIGH), axis, { color: "var(--grey)" }),
      [-150, -100, -50, 0, 50, 100].map((tick) => [
        h("line", { x1: x(tick), x2: x(tick), y1: axis, y2: axis + 5, stroke: "var(--grey)" }),
        label(x(tick), axis + 15, digits(tick), { anchor: "middle", size: 12 }),
      ]),
      wide
        ? label(0, axis + 15, "exponent", { size: 12 })
        : label(width, axis + 36, "exponent = score − shift", { anchor: "end", fill: "var(--grey)" }),
      key.nodes,
    ],
  };
}

// The window of a dtype with the scores. x: the place of an exponent; back: the exponent at a place.
function laneOf({ trace, state, lane, x, back, wide, y }) {
  const { zero, inf } = lane.window;
  const selected = lane.dtype === state.dtype;
  return h(
    "g",
    { key: lane.dtype },
    wide
      ? label(0, y + LANE / 2, lane.dtype, { weight: selected ? 700 : undefined })
      : label(0, y - 12, lane.dtype + (selected ? ", chosen" : ""), { weight: selected ? 700 : undefined }),
    zonesOf({ lane, x, y }),
    h("rect", {
      key: "chosen",
      x: x(LOW),
      y,
      width: x(HIGH) - x(LOW),
      height: LANE,
      fill: "none",
      stroke: selected ? "var(--ink)" : "none",
      "stroke-width": 2,
      "pointer-events": "none",
    }),
    label(x(zero) - 3, y + LANE + 11, digits(zero), { anchor: "end", size: 12 }),
    label(x(inf) + 3, y + LANE + 11, digits(inf), { size: 12 }),
    cloudOf({ trace, state, lane, selected, x, back, y }),
  );
}

// The kind of result that exp has in a dtype, by exponent.
function zonesOf({ lane, x, y }) {
  const { zero, normal, inf } = lane.window;
  const zone = (key, from, to, words, look, about) => {
    const room = x(to) - x(from);
    const box = { x: x(from), y, width: room, height: LANE };
    const tip = { title: `${lane.dtype}: ${words}`, lines: [about] };
    return [
      h("rect", { key, ...box, ...look, tip }),
      look.few && h("rect", { key: `${key} few`, ...box, fill: "url(#few)", "pointer-events": "none" }),
      fits(words, room - 8, 13) && label((x(from) + x(to)) / 2, y + LANE - 11, words, { anchor: "middle" }),
    ];
  };
  const number = { fill: "var(--fast)", "fill-opacity": 0.24 };
  const few = { fill: "var(--fast)", "fill-opacity": 0.12, few: true };
  const infinite = { fill: "var(--wrong)", "fill-opacity": 0.14 };
  const short = fits("exp is ∞", x(HIGH) - x(inf) - 8, 13) ? "exp is ∞" : "∞";
  return [
    zone(
      "zero",
      LOW,
      zero,
      "exp is 0",
      { fill: "var(--paper)", stroke: "var(--pale)" },
      `for exponents below ${digits(zero)}`,
    ),
    zone(
      "subnormal",
      zero,
      normal,
      "subnormal",
      few,
      `few digits for exponents from ${digits(zero)} to ${digits(normal)}`,
    ),
    zone("normal", normal, inf, "exp is a number", number, `for exponents from ${digits(normal)} to ${digits(inf)}`),
    zone("inf", inf, HIGH, short, infinite, `for exponents above ${digits(inf)}`),
  ];
}

// The scores on a grip. The dot that was taken follows the pointer.
function cloudOf({ trace, state, lane, selected, x, back, y }) {
  const kinds = lane.kinds[state.shift];
  const dragged = (score) => ({
    field: "shift",
    to: (point) => ({ shift: score - back(point.x), dtype: lane.dtype }),
  });
  const dots = trace.scores.map((score, n) => {
    const exponent = score - state.shift;
    const e = selected ? wordsOf(trace.e[state.shift][n]) : EXP[kinds[n]].words;
    const tip = {
      title: `score ${digits(score)} in ${lane.dtype}`,
      lines: [`exponent ${digits(exponent)}`, `exp is ${e}`],
      code: trace.code.e,
    };
    return dot(kinds[n], { key: `dot ${n}`, x: x(exponent), y: y + 38 - 4.2 * n, tip, drag: dragged(score) });
  });
  const [first, last] = [trace.scores[0], trace.scores.at(-1)];
  const box = { x: x(first - state.shift) - 14, y: y + 1, width: x(last) - x(first) + 28, height: 47, rx: 12 };
  const look = { fill: "var(--paper)", "fill-opacity": 0.75, stroke: "var(--grey)" };
  return [h("rect", { key: "grip", ...box, ...look, drag: dragged((first + last) / 2) }), dots];
}

function dot(kind, { key, x, y, tip, drag }) {
  return h(
    "g",
    { key, transform: `translate(${Math.round(x * 10) / 10} ${Math.round(y * 10) / 10})`, tip, drag },
    h("rect", { x: -DOT / 2, y: -DOT / 2, width: DOT, height: DOT, ...EXP[kind].shape }),
  );
}

const wordsOf = (value) => (typeof value === "number" ? digits(value) : value);

// The weights, and words for those that cannot be drawn.
function barsOf({ trace, state, x, y, width }) {
  const [e, P, l, outcome] = [trace.e, trace.P, trace.l, trace.outcome].map((of) => of[state.shift]);
  const [left, top] = [x + 20, y + 28];
  const floor = top + BARS;
  const unit = (width - 20) / P.length;
  const columns = trace.scores.map((score, n) => {
    const start = left + n * unit;
    const tip = {
      title: `weight of score ${digits(score)}`,
      lines: [
        `exp(${digits(score)} − ${state.shift}) is ${wordsOf(e[n])}`,
        `divided by ${wordsOf(l)}: ${wordsOf(P[n])}`,
        `exact: ${digits(trace.exact[n])}`,
      ],
      code: trace.code.P,
    };
    const high = typeof P[n] === "number" ? P[n] * BARS : 0;
    const ideal = floor - trace.exact[n] * BARS;
    return h(
      "g",
      { key: `weight ${n}`, tip },
      h("rect", { x: start, y: top, width: unit, height: BARS, fill: "transparent" }),
      h("rect", {
        key: "bar",
        x: start + 0.15 * unit,
        y: floor - high,
        width: 0.7 * unit,
        height: high,
        fill: "var(--P)",
      }),
      rule(start + 0.08 * unit, start + 0.92 * unit, ideal, { width: 2 }),
      typeof P[n] !== "number" &&
        label(start + unit / 2, floor - BARS / 2, P[n], { anchor: "middle", weight: 650, fill: "var(--wrong)" }),
      P[n] === 0 &&
        outcome !== "right" &&
        label(start + unit / 2, floor - BARS / 2, "0", { anchor: "middle", weight: 650, fill: "var(--wrong)" }),
      label(start + unit / 2, floor + 14, digits(score), { anchor: "middle", size: 12 }),
    );
  });
  return {
    bottom: floor + 54,
    nodes: [
      label(x, y, `softmax${width < 400 ? "" : " of the eight scores"} in ${state.dtype} (lines: exact)`, {
        weight: 650,
      }),
      rule(left, x + width, top, { color: "var(--pale)" }),
      rule(left, x + width, floor, { color: "var(--grey)" }),
      label(x, top, "1", { size: 12 }),
      label(x, floor, "0", { size: 12 }),
      columns,
      label(x, floor + 42, `sum of exp: ${wordsOf(l)}`),
      label(x + width / 2, floor + 42, `result: ${outcome}`, {
        weight: 650,
        fill: outcome === "right" ? "var(--ink)" : "var(--wrong)",
      }),
    ],
  };
}

// The outcome of softmax for every shift. The line is the shift, and can be dragged.
function mapOf({ trace, state, x, y, width, legend }) {
  const last = trace.outcome.length - 1;
  const left = x + 68;
  const across = (shift) => left + (shift / (last + 1)) * (width - 68);
  const drag = { field: "shift", to: (point) => ({ shift: ((point.x - left) / (width - 68)) * (last + 1) }) };
  const top = y + 30;
  const floor = top + trace.lanes.length * (STRIP + 6);
  const key = legendOf(
    legend,
    floor + 62,
    x + width,
    Object.keys(OUTCOMES).map((name) => [
      name,
      ({ x: middle, y: centre }) => outcomeOf(name, { x: middle - 7, y: centre - 9, width: 14, height: 18 }, false),
    ]),
  );
  return {
    bottom: key.bottom,
    nodes: [
      label(x, y, "and for every shift: drag the line", { weight: 650 }),
      outcomesOf({ trace, state, x, top, across, drag }),
      [0, 50, 100, 150, 200].map((tick) => [
        h("line", { x1: across(tick), x2: across(tick), y1: floor, y2: floor + 5, stroke: "var(--grey)" }),
        label(across(tick), floor + 15, tick, { anchor: "middle", size: 12 }),
      ]),
      label(
        x + width,
        floor + 36,
        width < 400 ? "shift (100: the maximum)" : "shift (0: nothing subtracted, 100: the maximum)",
        { anchor: "end", fill: "var(--grey)" },
      ),
      shiftLine({ shift: state.shift, x: across(state.shift), top, floor, drag }),
      key.nodes,
    ],
  };
}

// A strip per dtype: its outcomes, by shift.
function outcomesOf({ trace, state, x, top, across, drag }) {
  return trace.lanes.map((lane, row) => {
    const above = top + row * (STRIP + 6);
    const selected = lane.dtype === state.dtype;
    return h(
      "g",
      { key: `outcomes ${lane.dtype}` },
      label(x, above + STRIP / 2, lane.dtype, { weight: selected ? 700 : undefined }),
      lane.outcomes.map(({ name, first, last: until }) => {
        const box = { x: across(first), y: above, width: across(until + 1) - across(first), height: STRIP };
        const shifts = first === until ? `shift ${first}` : `shifts from ${first} to ${until}`;
        return h(
          "g",
          { key: `${first}`, tip: { title: `${lane.dtype}: ${name}`, lines: [shifts] }, drag },
          outcomeOf(name, box, true, across(state.shift)),
        );
      }),
    );
  });
}

const SHIFTS = { 0: "nothing is subtracted", 100: "the maximum is subtracted" };

function shiftLine({ shift, x, top, floor, drag }) {
  return h(
    "g",
    {
      key: "here",
      style: at(x, top - 10),
      drag: { ...drag, name: "shift of the scores" },
      tip: { title: `shift ${shift}`, lines: [SHIFTS[shift] ?? "subtracted from every score"] },
    },
    h("rect", { x: -12, y: -10, width: 24, height: floor - top + 18, fill: "transparent" }),
    h("line", { y1: 0, y2: floor - top + 8, stroke: "var(--paper)", "stroke-width": 5 }),
    h("line", { y1: 0, y2: floor - top + 8, stroke: "var(--ink)", "stroke-width": 2 }),
    h("path", { d: "M-7 -8 L7 -8 L0 3 Z", fill: "var(--ink)" }),
  );
}

// The middle of words in a box: the middle of the box, or beside the line if the line would cross the words.
function beside({ x, width, line, half }) {
  const middle = x + width / 2;
  const moved = line > middle ? line - half : line + half;
  const isInside = moved - half >= x && moved + half <= x + width;
  return Math.abs(line - middle) < half && isInside ? moved : middle;
}

// line: the place of the shift, beside which the words stand.
function outcomeOf(name, { x, y, width, height }, named, line = -Infinity) {
  const { from, to, short, on, fill, stroke, opacity, few } = OUTCOMES[name];
  const look = { x, y: y + from * height, width, height: (to - from) * height };
  return [
    h("rect", { key: "whole", x, y, width, height, fill: "var(--paper)" }),
    h("rect", { key: "part", ...look, fill, "fill-opacity": opacity, stroke: stroke ?? "none" }),
    few && h("rect", { key: "few", ...look, fill: "url(#few)" }),
    named &&
      short !== "" &&
      fits(short, width - 4, 13) &&
      label(beside({ x, width, line, half: short.length * 3.9 + 5 }), y + ((from + to) / 2) * height, short, {
        anchor: "middle",
        fill: on,
      }),
  ];
}

// Marks with their words, in as many rows as they need.
function legendOf(x, y, right, entries) {
  let left = x;
  let row = y;
  const nodes = entries.map(([words, mark]) => {
    const wide = 20 + words.length * 6.9 + 14;
    if (left + wide > right && left > x) [left, row] = [x, row + 24];
    const drawn = h("g", { key: `legend ${words}` }, mark({ x: left + 7, y: row }), label(left + 20, row, words));
    left += wide;
    return drawn;
  });
  return { nodes, bottom: row + 12 };
}
