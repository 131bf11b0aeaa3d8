// Three units of a multiprocessor on a clock, two tiles of queries in each; below, what each share of polynomials
// takes.

import { h } from "./svg.js";
import { fits, grouped, wrapped } from "./words.js";
import { nearest } from "./state.js";
import { SIZE, WIDE, at, boxes, label, legend, lines, rule, spot } from "./marks.js";

const COLORS = { S: "S", PV: "O", maximum: "standard", weights: "P", rescale: "standard", divide: "standard" };
const PLACES = [
  [
    [0, 0.5],
    [0.5, 1],
  ],
  [
    [0, 0.5],
    [0.5, 1],
  ],
  [
    [0, 0.4],
    [0.4, 0.8],
    [0.8, 1],
  ],
]; // in each lane: the place of each tile, and of O
const UNITS = ["O", "P", "standard"]; // the colours of products, exponentials, all else
const LANE = 62;
const GROUND = "color-mix(in srgb, var(--pale) 35%, var(--paper))"; // the ground of a lane
const GAP = 26;
const SPAN = 6000; // cycles that a narrow picture shows at a time
const BARS = 112; // height of the longest bar

export function draw({ trace, step, width }) {
  const wide = width >= WIDE;
  const now = trace.times[step];
  const left = wide ? 100 : 44;
  const span = wide ? trace.cycles : SPAN;
  const from = wide ? 0 : Math.max(0, Math.min(now - 0.75 * SPAN, trace.cycles - SPAN));
  const unit = (width - left - (wide ? 6 : 0)) / span;
  const scene = {
    trace,
    now,
    left,
    span,
    from,
    width,
    at: (cycle) => left + (cycle - from) * unit,
    top: (lane) => 64 + lane * (LANE + GAP),
  };
  const bottom = scene.top(3) - GAP;
  const chart = bottom + 66;
  return {
    height: chart + BARS + (wide ? 118 : 160),
    nodes: [
      label(0, 10, `cycle ${grouped(now)} of ${grouped(trace.cycles)}`, {
        weight: 650,
        size: 15,
      }),
      trace.lanes.map((_, lane) => groundOf(lane, scene)),
      boxesOf(scene),
      trace.lanes.map((words, lane) => wordsOf(words, lane, scene)),
      timeOf(scene, bottom),
      sharesOf(scene, chart),
    ],
  };
}

const groundOf = (lane, { left, top, width }) =>
  h("rect", { key: `lane ${lane}`, x: left, y: top(lane), width: width - left, height: LANE, fill: GROUND });

function wordsOf(words, lane, { left, top }) {
  const y = top(lane);
  return [
    label(0, y - 11, lane === 2 ? `${words} (grey: m and O)` : words, { weight: 600 }),
    PLACES[lane].map(([low, high], place) =>
      label(left - 6, y + ((low + high) / 2) * LANE, ["tile 0", "tile 1", "O"][place], {
        anchor: "end",
        size: 12,
        fill: "var(--grey)",
      }),
    ),
  ];
}

// The boxes of the visible time, with a veil over those after the clock. Only the veil moves with the clock, and no box
// is drawn again.
function boxesOf(scene) {
  const { trace, now, left, from, span, width, at: place, top } = scene;
  const shown = trace.boxes
    .map((box, number) => ({ ...box, key: `box ${number}`, ...placeOf(box, scene) }))
    .filter((box) => box.end > from && box.start < from + span);
  const drawn = [...new Set(Object.values(COLORS))].map((color) =>
    boxes(
      color,
      shown.filter((box) => COLORS[box.kind] === color),
      { fill: `var(--${color})`, stroke: "var(--paper)" },
    ),
  );
  const lanes = trace.lanes.map((_, lane) => ({ x: 0, y: top(lane), width: width - left, height: LANE }));
  const style = `${at(place(now), 0)} scaleX(${(width - place(now)) / (width - left)})`;
  return [
    drawn,
    boxes("veil", lanes, { class: "mark", style, fill: GROUND, "fill-opacity": 0.75 }),
    shown.map((box) => spot(box.key, box, tipOf(box, trace))),
    shown.map((box) => nameOf(box, scene)),
  ];
}

// The place of a box in the picture, cut off at the picture's ends.
function placeOf(box, { left, width, at: place, top }) {
  const [x, end] = [Math.max(place(box.start), left), Math.min(place(box.end), width)];
  const [low, high] = PLACES[box.lane][box.place];
  return { x, y: top(box.lane) + low * LANE + 1, width: end - x, height: (high - low) * LANE - 2 };
}

function tipOf({ words, kind, start, end }, { code }) {
  const cycles = [start, end, end - start].map(grouped);
  return { title: words, lines: [`cycles ${cycles[0]} to ${cycles[1]}: ${cycles[2]}`], code: code[kind] };
}

function nameOf({ key, name, kind, start, end, x, y, width, height }, { now }) {
  if (!name || !fits(name, width, SIZE) || height + 2 < SIZE) return false;
  const fill = now > (start + end) / 2 ? `var(--on-${COLORS[kind]})` : "var(--ink)";
  return label(x + width / 2, y + height / 2, name, { key: `name of ${key}`, anchor: "middle", fill });
}

// The scale of time and the clock.
function timeOf({ trace, now, left, from, span, width, at: place, top }, bottom) {
  const every = 2000;
  const ticks = [];
  for (let cycle = Math.ceil(from / every) * every; cycle <= Math.min(from + span, trace.cycles); cycle += every)
    ticks.push(cycle);
  const tick = (cycle) => {
    const x = place(cycle);
    const anchor = x < left + 20 ? "start" : x > width - 20 ? "end" : "middle";
    return label(x, bottom + 16, grouped(cycle), { anchor, size: 12 });
  };
  return [
    ticks.map(tick),
    label(0, bottom + 16, "cycles", { size: 12 }),
    h(
      "g",
      { key: "clock", class: "mark", style: at(place(now), 0) },
      h("line", { y1: top(0) - 4, y2: bottom + 5, stroke: "var(--ink)", "stroke-width": 2 }),
    ),
  ];
}

// A bar for each share: the time of a block, and in it the time that each unit works for the block.
function sharesOf({ trace, width }, y) {
  const slot = Math.min(width / trace.shares.length, 96);
  const floor = y + BARS + 26;
  const places = trace.shares.map((_, at) => (at + 0.5) * slot);
  const nearby = ({ x }) => trace.shares[places.indexOf(nearest(places, x))].share;
  const drag = { field: "share", to: (point) => ({ share: nearby(point) }) };
  const frame = { width: slot - 2, height: floor + 10 - y, rx: 4, fill: "transparent", stroke: "var(--ink)" };
  const long = "cycles per block of 256 queries by 128 keys, by share of the exponentials that are polynomials";
  const title = fits(long, width, SIZE + 1) ? long : "cycles per block, by share of polynomials";
  const notes = [
    "bars: how long each unit works for a block; outline: how long the block takes, once all is under way",
    "✓: the smallest share within 0.5% of the best",
  ];
  const texts = notes.flatMap((words) => wrapped(words, width, 12));
  return [
    label(0, y, title, { weight: 600 }),
    trace.shares.map((one, at) =>
      shareOf({ ...one, trace, selected: at === trace.selected, left: at * slot, slot, floor, drag }),
    ),
    h(
      "g",
      {
        key: "hand",
        class: "mark",
        style: at(trace.selected * slot, 0),
        drag: { ...drag, name: "share by polynomial" },
        tip: { title: `share ${trace.shares[trace.selected].share}`, lines: ["pull the frame to another one"] },
      },
      h("rect", { x: 1, y: y + 14, ...frame }),
    ),
    rule(0, slot * trace.shares.length, floor, { color: "var(--grey)", key: "floor" }),
    legend(
      0,
      floor + 40,
      trace.lanes.map((words, lane) => ({ words, name: UNITS[lane], stored: lane === 2 })),
    ),
    lines(0, floor + 64, texts, { fill: "var(--grey)", size: 12, gap: 1.5 }),
  ];
}

function shareOf({ share, cycles, units, trace, selected, left, slot, floor, drag }) {
  const thick = Math.min(11, (slot - 16) / 3);
  const scale = BARS / trace.most;
  const x = left + (slot - 3 * thick - 6) / 2;
  const middle = x + (3 * thick + 6) / 2;
  const [count, weight] = [grouped(cycles), selected ? 700 : undefined];
  const lines = trace.lanes.map((name, lane) => `${name}: ${grouped(units[lane])} cycles`);
  return h(
    "g",
    { key: `share ${share}`, tip: { title: `share ${share}: a block takes ${count} cycles`, lines }, drag },
    h("rect", {
      key: "whole",
      x,
      y: floor - cycles * scale,
      width: 3 * thick + 6,
      height: cycles * scale,
      fill: "var(--paper)",
      stroke: selected ? "var(--ink)" : "var(--grey)",
      "stroke-width": selected ? 2.5 : 1,
      class: "grow",
    }),
    units.map((value, lane) =>
      h("rect", {
        key: `unit ${lane}`,
        x: x + 3 + lane * thick,
        y: floor - value * scale,
        width: thick - 1,
        height: value * scale,
        fill: `var(--${UNITS[lane]})`,
        "fill-opacity": selected ? 1 : 0.45,
        class: "grow",
      }),
    ),
    lane2(x, thick, floor, units[2] * scale),
    label(middle, floor - Math.max(cycles, ...units) * scale - 11, count, { anchor: "middle", size: 12, weight }),
    label(middle, floor + 14, share === trace.best ? `${share} ✓` : share, { anchor: "middle", weight }),
  );
}

function lane2(x, thick, floor, high) {
  return h("rect", {
    key: "hatch",
    x: x + 3 + 2 * thick,
    y: floor - high,
    width: thick - 1,
    height: high,
    fill: "url(#stored)",
    class: "grow",
  });
}
