// A lane per program with its tiles, one after the other; below it the same for all orders: when the last program ends,
// and how many keys and values are in use at once.

import { h } from "./svg.js";
import { amount, digits, fits, times, wrapped } from "./words.js";
import { WIDE, at, knob, label, lines, rule, tile } from "./marks.js";

const LANES = 9; // the most programs that there can be
const LANE = 25;
const ROW = 24; // height of a row of a chart
const NAMES = 138; // room for the names of the orders
const letter = (head) => "ABCDEFGH"[head];

export function draw({ trace, step, width }) {
  const wide = width >= WIDE;
  const left = wide ? 100 : 44;
  const top = wide ? 60 : 78;
  const bottom = top + LANES * LANE;
  const unit = (width - left - 8) / trace.longest; // pixels per block
  const scene = { trace, step, width, wide, left, top, bottom, unit, place: (time) => left + time * unit };
  const notes = wrapped(
    "a tile is as long as its blocks of keys, its letter is its head; pale: still to come",
    width - left,
    12,
  );
  const charts = bottom + 52 + 17 * notes.length;
  const size = wide ? (width - NAMES - 40) / 2 : width - NAMES;
  const below = charts + 3 * ROW + 52;
  return {
    height: (wide ? charts : below) + 3 * ROW + 36,
    nodes: [
      headOf(scene),
      Array.from({ length: LANES }, (_, program) => laneOf(program, scene)),
      Array.from({ length: trace.programs }, (_, program) => idleOf(program, scene)),
      trace.tiles.map((one) => tileOf(one, scene)),
      meanOf(scene),
      timeOf(scene),
      lines(left, bottom + 44, notes, { size: 12, fill: "var(--grey)" }),
      clockOf(scene),
      edgeOf(scene),
      Array.from({ length: trace.programs }, (_, program) => idleWords(program, scene)),
      endsOf(scene, { x: NAMES, y: charts, width: size }),
      headsOf(scene, { x: wide ? NAMES + size + 40 : NAMES, y: wide ? charts : below, width: size }),
    ],
  };
}

function headOf({ trace, step, width, wide }) {
  const used = trace.heads[step];
  const idle = trace.programs - trace.tiles.filter((one) => runs(one, step)).length;
  const inUse = `${times(used.length, "head")} in use: ${used.map(letter).join(" ")}`;
  const now = `at ${step}: ${used.length ? `${idle} of ${trace.programs} idle, ${inUse}` : "all have ended"}`;
  return [
    label(0, 10, `the last program ends at ${trace.end}`, { weight: 650, size: 15 }),
    label(wide ? width : 0, wide ? 10 : 32, now, { anchor: wide ? "end" : "start" }),
  ];
}

const runs = ({ start, blocks }, time) => start <= time && time < start + blocks;

// The lane of a program, dashed if there is no such program.
function laneOf(program, { trace, wide, left, top, unit }) {
  const y = top + program * LANE;
  const there = program < trace.programs;
  return h(
    "g",
    { key: `lane ${program}` },
    label(0, y + LANE / 2, wide ? `program ${program}` : program, { fill: there ? "var(--ink)" : "var(--grey)" }),
    h("rect", {
      x: left,
      y: y + 2,
      width: trace.longest * unit,
      height: LANE - 4,
      fill: there ? "var(--pale)" : "transparent",
      "fill-opacity": 0.35,
      stroke: there ? undefined : "var(--pale)",
      "stroke-dasharray": there ? undefined : "3 3",
    }),
  );
}

// The time in which a program waits for the last one.
function idleOf(program, { trace, top, unit, place }) {
  const { end, idle } = endOf(program, trace);
  const tip = { title: `program ${program} ends at ${end}`, lines: [`${times(idle, "block")} before the last one`] };
  const box = { x: place(end), y: top + program * LANE + 2, width: idle * unit, height: LANE - 4, class: "grow" };
  return idle > 0 && h("g", { key: `idle ${program}`, tip }, h("rect", { ...box, fill: "url(#stored)" }));
}

// The length of that time in words, drawn over all lines.
function idleWords(program, { trace, top, unit, place }) {
  const { end, idle } = endOf(program, trace);
  const words = `idle ${idle}`;
  const y = top + program * LANE + 5;
  const ground = { x: place(end) + 6, y, width: words.length * 7, height: LANE - 10, fill: "var(--paper)" };
  return (
    fits(words, idle * unit - 8, 12) && [
      h("rect", { key: `ground ${program}`, ...ground, "pointer-events": "none" }),
      label(place(end) + 10, y + LANE / 2 - 5, words, { key: `words ${program}`, size: 12 }),
    ]
  );
}

function endOf(program, trace) {
  const own = trace.tiles.filter((one) => one.program === program);
  const end = Math.max(...own.map((one) => one.start + one.blocks));
  return { end, idle: trace.end - end };
}

function tileOf(one, { trace, step, top, unit, place }) {
  const { head, i, blocks, program, start } = one;
  return tile({
    key: `tile ${head} ${i}`,
    x: place(start),
    y: top + program * LANE + 2,
    width: blocks * unit,
    height: LANE - 4,
    name: "O",
    letter: letter(head),
    faint: step < start ? 0.35 : undefined,
    current: runs(one, step),
    tip: {
      title: `tile ${i} of head ${letter(head)}: ${times(blocks, "block")}`,
      lines: [`program ${program}, from ${start} to ${start + blocks}`],
      code: trace.code,
    },
  });
}

// The time at which all programs would end if none were idle.
function meanOf({ trace, top, bottom, place, width }) {
  const x = place(trace.mean);
  const after = x < width / 2;
  const words = `${digits(trace.mean, 3)}: no order ends earlier`;
  return h(
    "g",
    { key: "mean", class: "mark", style: at(x, 0), "pointer-events": "none" },
    h("path", { d: `M0 ${top - 16}V${bottom}`, stroke: "var(--ink)", "stroke-width": 1.5, "stroke-dasharray": "5 4" }),
    label(after ? 6 : -6, top - 11, words, { size: 12, anchor: after ? "start" : "end" }),
  );
}

// The scale of time. A click sets the clock.
function timeOf({ trace, left, bottom, unit, place, width }) {
  const every = trace.longest > 70 ? 16 : 8;
  const ticks = Array.from({ length: Math.floor(trace.longest / every) + 1 }, (_, tick) => tick * every);
  return [
    ticks.map((time) => label(place(time), bottom + 24, time, { anchor: "middle", size: 12, fill: "var(--grey)" })),
    label(0, bottom + 24, width < WIDE ? "time" : "blocks", { size: 12, fill: "var(--grey)" }),
    rule(left, width - 8, bottom + 4, { color: "var(--grey)", key: "axis" }),
    h("rect", {
      key: "time",
      x: left,
      y: bottom,
      width: trace.longest * unit,
      height: 32,
      fill: "transparent",
      drag: { field: "step", to: ({ x }) => ({ step: Math.round((x - left) / unit) }) },
      tip: { title: "time, in blocks of keys", lines: ["click or drag: the clock goes there"] },
    }),
  ];
}

function clockOf({ step, left, top, bottom, unit, place }) {
  const drag = { field: "step", name: "the clock", to: ({ x }) => ({ step: Math.round((x - left) / unit) }) };
  return [
    h(
      "g",
      { key: "line", class: "mark", style: at(place(step), 0), "pointer-events": "none" },
      h("path", { d: `M0 ${top - 4}V${bottom + 4}`, stroke: "var(--ink)", "stroke-width": 2 }),
    ),
    knob({
      key: "clock",
      x: place(step),
      y: bottom + 4,
      drag,
      tip: { title: `time ${step}`, lines: ["pull, or use the arrow keys"] },
    }),
  ];
}

// The lower edge of the lanes, to pull: down for more programs.
function edgeOf({ trace, left, top }) {
  const y = top + trace.programs * LANE;
  return [
    h(
      "g",
      { key: "edge", class: "mark", style: at(0, y), "pointer-events": "none" },
      rule(0, left - 8, 0, { key: "edge" }),
    ),
    knob({
      key: "programs",
      x: left - 18,
      y,
      tip: { title: times(trace.programs, "program"), lines: ["pull for more or fewer"] },
      drag: {
        field: "programs",
        name: "number of programs",
        grows: [1, 1],
        to: (point) => ({ programs: Math.round((point.y - top) / LANE) }),
      },
    }),
  ];
}

// A chart with a row per order. rows: {name, parts: [{value, color}], words, tips}; limit: {value, words}; named:
// whether it has the names of the orders.
function chart({ key, title, rows, most, limit, named, selected, code }, { x, y, width }) {
  const scale = (width - 140) / most; // the rest is for words at the ends of bars
  const left = named ? 0 : x;
  return h(
    "g",
    { key, class: "compared" },
    label(left, y, title, { weight: 650 }),
    rows.map(({ name, parts, words, tips }, row) => {
      const outlined = name === selected;
      const top = y + 26 + row * ROW;
      const ends = x + scale * Math.max(limit.value, sumOf(parts));
      return h(
        "g",
        {
          key: `row ${name}`,
          tip: { title: name, lines: [...tips, "press: show this order"], code: outlined ? code : undefined },
          drag: { field: "order", to: () => ({ order: name }) },
        },
        h("rect", { x: left, y: top - 12, width: x + width - left, height: ROW, fill: "transparent" }),
        named && label(0, top, name),
        barOf({ parts, x, y: top - 8, scale, outlined }),
        label(ends + 8, top, words, { weight: outlined ? 650 : undefined }),
      );
    }),
    limitOf({ x: x + limit.value * scale, y, words: limit.words }),
  );
}

const sumOf = (parts) => parts.reduce((sum, { value }) => sum + value, 0);

function barOf({ parts, x, y, scale, outlined }) {
  const starts = parts.map((_, part) => sumOf(parts.slice(0, part)));
  const box = (start, value, look) =>
    h("rect", { x: x + start * scale, y, width: value * scale, height: 16, class: "grow", ...look });
  return [
    parts.map(({ value, color }, part) => box(starts[part], value, { key: `part ${part}`, fill: `var(--${color})` })),
    outlined && box(0, sumOf(parts), { key: "chosen", fill: "none", stroke: "var(--ink)", "stroke-width": 2.5 }),
  ];
}

function limitOf({ x, y, words }) {
  return h(
    "g",
    { key: "limit", class: "mark", style: at(x, 0), "pointer-events": "none" },
    h("path", {
      d: `M0 ${y + 12}V${y + 18 + 3 * ROW}`,
      stroke: "var(--ink)",
      "stroke-width": 1.5,
      "stroke-dasharray": "5 4",
    }),
    label(0, y + 26 + 3 * ROW, words, { size: 12, anchor: "middle" }),
  );
}

function endsOf({ trace }, place) {
  const rows = trace.orders.map(({ name, end }) => ({
    name,
    parts: [{ value: end, color: "O" }],
    words: end,
    tips: [`${digits(100 * (end / trace.mean - 1), 2)}% later than without idle programs`],
  }));
  const limit = { value: trace.mean, words: `no order ends before ${digits(trace.mean, 3)}` };
  const title = "the last program ends at";
  const about = { key: "ends", title, rows, most: trace.longest, limit, named: true };
  return chart({ ...about, selected: trace.order, code: trace.code }, place);
}

function headsOf({ trace, wide }, place) {
  const rows = trace.orders.map(({ name, heads }) => ({
    name,
    parts: ["K", "V"].map((color) => ({ value: (heads * trace.bytes) / 2, color })),
    words: `${times(heads, "head")}, ${amount(heads * trace.bytes)}`,
    tips: [`at most ${times(heads, "head")} at once`, `each has K and V of ${amount(trace.bytes)}`],
  }));
  const limit = { value: trace.cache, words: `L2 cache: ${amount(trace.cache)}` };
  const title = "K and V in use at once, at most";
  const about = { key: "heads", title, rows, most: 8 * trace.bytes, limit, named: !wide };
  return chart({ ...about, selected: trace.order, code: trace.code }, place);
}
