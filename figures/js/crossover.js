// Four charts on logarithmic axes, one per cost: softmax attention rises steeper than linear attention, and crosses it.

import { h } from "./svg.js";
import { amount, digits, grouped, wrapped } from "./words.js";
import { nearest } from "./state.js";
import { WIDE, at, label, lines, rule } from "./marks.js";

const GAP = 34;
const HIGH = 168; // height of a chart
const HEAD = 84; // room above a chart: its name, both amounts and their ratio
const FOOT = 40; // room below a chart: the lengths
const LOOKS = {
  softmax: { color: "var(--flash)", words: "softmax" },
  linear: { color: "var(--ink)", words: "linear", dash: "6 4" },
};
const TICKS = [
  [64, "64"],
  [1024, "1 K"],
  [16384, "16 K"],
];

const time = (seconds) =>
  seconds < 1e-6
    ? `${digits(seconds * 1e9, 3)} ns`
    : seconds < 1e-3
      ? `${digits(seconds * 1e6, 3)} µs`
      : `${digits(seconds * 1e3, 3)} ms`;
const count = (flops) =>
  flops < 1e9
    ? `${digits(flops / 1e6, 3)} MFLOP`
    : flops < 1e12
      ? `${digits(flops / 1e9, 3)} GFLOP`
      : `${digits(flops / 1e12, 3)} TFLOP`;
const FORMATS = { flops: count, bytes: amount, state: amount, seconds: time };

export function draw({ trace, step, width }) {
  const across = width >= WIDE ? 4 : width >= 560 ? 2 : 1;
  const size = Math.min((width - (across - 1) * GAP) / across, 430);
  const high = HEAD + HIGH + FOOT + 12;
  const about = wrapped(
    `one head, d = ${trace.d}, both by ${trace.C} tokens; ×: softmax over linear; shaded: linear takes no more; ` +
      "both axes are logarithmic",
    width,
    13,
  );
  const top = 30 + 19 * about.length;
  const charts = trace.measures.map((measure, at) =>
    chart({
      trace,
      measure,
      step,
      x: (at % across) * (size + GAP),
      y: top + Math.floor(at / across) * high,
      width: size,
    }),
  );
  return {
    height: top + Math.ceil(charts.length / across) * high,
    nodes: [
      label(0, 10, `N = ${grouped(trace.lengths[step])} tokens`, { weight: 650, size: 15 }),
      lines(0, 32, about, { fill: "var(--grey)" }),
      charts,
    ],
  };
}

function chart({ trace, measure, step, x, y, width }) {
  const { lengths } = trace;
  const format = FORMATS[measure.what];
  const top = y + HEAD;
  const bottom = top + HIGH;
  const values = [...measure.softmax, ...measure.linear];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const place = (value, from, to, length) => (Math.log(value / from) / Math.log(to / from)) * length;
  const across = (N) => x + place(N, lengths[0], lengths.at(-1), width);
  const up = (value) => bottom - place(value, low, high, HIGH - 16) - 8;
  const back = (at) => Math.log(lengths[0]) + ((at - x) / width) * Math.log(lengths.at(-1) / lengths[0]); // log N
  const here = across(lengths[step]);
  const meeting = crossing(measure, lengths);
  const ratio = measure.softmax[step] / measure.linear[step];
  const named = `${measure.name}${measure.what === "seconds" ? `, ${trace.card.split(" ")[0]}` : ""}`;
  return h(
    "g",
    { key: measure.what, class: "compared" },
    label(x, y + 8, named, { weight: 650 }),
    label(x + 30, y + 64, `× ${digits(ratio, 3)}`, { weight: 600 }),
    label(x + width, y + 64, meeting.words, { anchor: "end", size: 12 }),
    Object.entries(LOOKS).map(([name, { color, words, dash }], row) => [
      h("path", { d: `M${x} ${y + 28 + 18 * row}h22`, stroke: color, "stroke-width": 2.5, "stroke-dasharray": dash }),
      label(x + 30, y + 28 + 18 * row, `${words}: ${format(measure[name][step])}`),
    ]),
    h("rect", { x, y: top, width, height: HIGH, fill: "var(--pale)", "fill-opacity": 0.25 }),
    linearWins({ ...meeting, x: across(meeting.from), top, bottom, right: x + width }),
    Object.entries(LOOKS).map(([name, { color, dash }]) =>
      h("path", {
        key: `line ${name}`,
        d: `M${lengths.map((N, at) => `${round(across(N))} ${round(up(measure[name][at]))}`).join("L")}`,
        fill: "none",
        stroke: color,
        "stroke-width": 2.5,
        "stroke-dasharray": dash,
      }),
    ),
    rule(x, x + width, bottom, { color: "var(--grey)" }),
    ticksOf(across, bottom),
    lineOf({ trace, measure, step, here, back, top, bottom }),
    Object.entries(LOOKS).map(([name, { color, words }]) =>
      dot({
        name,
        color,
        x: here,
        y: up(measure[name][step]),
        title: `${words} attention: ${format(measure[name][step])}`,
        words: tip({ trace, measure, name, step }),
      }),
    ),
  );
}

function ticksOf(across, bottom) {
  return TICKS.map(([N, words], at) => [
    h("path", { d: `M${across(N)} ${bottom}v5`, stroke: "var(--grey)" }),
    label(across(N), bottom + 16, words, { size: 12, anchor: at === 0 ? "start" : "middle", fill: "var(--grey)" }),
  ]);
}

// The line at N, to pull. back: the logarithm of N at a place on the page.
function lineOf({ trace, measure, step, here, back, top, bottom }) {
  const logarithms = trace.lengths.map(Math.log);
  const drag = {
    field: "step",
    name: measure === trace.measures[0] ? "tokens N" : undefined, // all four lines are one clock, and one is its handle
    to: (point) => ({ step: logarithms.indexOf(nearest(logarithms, back(point.x))) }),
  };
  const tip = { title: `N = ${grouped(trace.lengths[step])}`, lines: ["pull the line"] };
  return h(
    "g",
    { key: "here", drag, tip, class: "mark", style: at(here, 0) },
    h("rect", { x: -12, y: top, width: 24, height: bottom - top + 7, fill: "transparent" }),
    h("path", { d: `M0 ${top}V${bottom}`, stroke: "var(--ink)", "stroke-width": 1 }),
    h("circle", { cy: bottom, r: 7, fill: "var(--ink)", stroke: "var(--paper)" }),
  );
}

// The shortest length in view at which linear attention takes no more, and where the lines cross, in words.
function crossing({ crossing: N, softmax, linear }, lengths) {
  if (linear[0] <= softmax[0]) return { from: lengths[0], words: "linear wins" };
  if (N >= lengths.at(-1)) return { from: lengths.at(-1), words: "softmax wins" };
  return { from: N, words: `cross at ${grouped(N)}`, cross: true };
}

// The ground on which linear attention takes no more.
function linearWins({ from, words, cross, x, top, bottom, right }) {
  const ground = { x: round(x), y: top, width: round(right - x), height: bottom - top };
  const dashes = { stroke: "var(--fast)", "stroke-dasharray": "3 3", "stroke-width": 1.5 };
  return h(
    "g",
    { key: "linear", tip: { title: words, lines: [`from N = ${grouped(from)} on linear takes no more`] } },
    h("rect", { ...ground, fill: "var(--fast)", "fill-opacity": 0.12 }),
    cross && h("path", { d: `M${ground.x} ${top}V${bottom}`, ...dashes }),
  );
}

function dot({ name, color, x, y, title, words }) {
  return h(
    "g",
    {
      key: `dot ${name}`,
      class: "mark",
      style: at(x, y),
      tip: { title, lines: words },
    },
    h("circle", { r: 12, fill: "transparent" }),
    name === "softmax"
      ? h("circle", { r: 5.5, fill: color, stroke: "var(--paper)" })
      : h("rect", { x: -5, y: -5, width: 10, height: 10, fill: color, stroke: "var(--paper)" }),
  );
}

function tip({ trace, measure, name, step }) {
  const grows = step >= 2 ? `twice the tokens took × ${digits(measure[name][step] / measure[name][step - 2], 3)}` : "";
  const waits =
    measure.what === "seconds" && name === "linear"
      ? `${digits(trace.intensity[step], 3)} FLOPs per byte; the ridge is at ${Math.round(trace.ridge)}`
      : "";
  const once = measure.what === "seconds" ? "at the peaks of the card, each byte once" : "";
  return [`at N = ${grouped(trace.lengths[step])}`, grows, waits, once].filter(Boolean);
}

const round = (value) => Math.round(value * 100) / 100;
