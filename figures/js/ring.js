// A ring of processors: their queries stay, and shards of K and V move. Beside it are the same steps in three
// placements: the owner of each token, the blocks that are done, who computed and who waited.

import { h } from "./svg.js";
import { amount, digits, times } from "./words.js";
import { WIDE, at, boxes, label, legend, rule, spot } from "./marks.js";

const STRIP = 22; // height of the tokens
const ROW = 22; // height of a rank's time
const TOP = 46 + STRIP + 34; // upper edge of the blocks of scores, and of the ring
const SPACE = 26; // between panels
const CARRIED = 27; // from a processor to its shard
const ABOUT = { contiguous: "one stretch each", zigzag: "two stretches each", striped: "every P-th token" };

export function draw({ trace, step, width }) {
  const wide = width >= WIDE;
  const size = wide ? (width - 3 * SPACE) / 4 : Math.min(width, 460);
  const side = Math.min(wide ? size - 26 : size / 2, 200);
  const clocks = wide ? { x: 0, y: TOP + side + 34 } : { x: side + 44, y: TOP }; // below the scores, or beside them
  const words = Math.max(TOP + side, clocks.y + trace.P * ROW) + 34;
  const high = words + (wide ? 30 : 54);
  const ring = circle({ trace, step, width: size, middle: wide ? TOP + side / 2 : 170 });
  const above = wide ? 0 : ring.bottom + 30; // upper edge of the first placement
  const longest = Math.max(...trace.runs.map((run) => run.makespan));
  const panels = trace.runs.map((run, place) => {
    const [x, y] = wide ? [(place + 1) * (size + SPACE), 0] : [0, above + place * high];
    return panel({ trace, run, step, longest, x, y, width: size, side, clocks, words });
  });
  return { height: wide ? Math.max(high, ring.bottom) : above + 3 * high, nodes: [ring.nodes, panels, ring.shards] };
}

const KEY = [
  { name: "P", words: "computed in this step" },
  { name: "S", words: "before" },
  { name: "standard", stored: true, words: "idle" },
];

// The processors in a circle, each with the shard that it has in this step. Every shard then moves to the next one.
// (Shards are drawn last: what moves is a layer, and everything drawn after it would be one more.)
function circle({ trace, step, width, middle }) {
  const { P } = trace;
  const radius = Math.min(width / 2 - CARRIED - 16, 80);
  const below = middle + radius + CARRIED + 42;
  const place = (rank, far) => {
    const angle = (2 * Math.PI * rank) / P;
    return [width / 2 + far * Math.sin(angle), middle - far * Math.cos(angle)];
  };
  const ranks = Array.from({ length: P }, (_, rank) => rank);
  const sent = trace.runs[0].steps.slice(0, step).reduce((sum, [first]) => sum + first.sent, 0);
  const nodes = h(
    "g",
    { key: "ring", class: "compared" },
    label(0, 8, "the ring", { weight: 650, size: 15 }),
    label(0, 28, "Q stays, K and V walk", { fill: "var(--grey)" }),
    h("circle", {
      cx: width / 2,
      cy: middle,
      r: radius,
      fill: "none",
      stroke: "var(--grey)",
      "stroke-dasharray": "3 3",
    }),
    ranks.map((rank) => processor({ rank, owner: (rank - step + P) % P, place: place(rank, radius) })),
    label(width / 2, middle, `step ${step}`, { anchor: "middle", weight: 650 }),
    label(0, below, `sent ${amount(sent)} each`, { weight: 600 }),
    label(0, below + 20, "pull shard 0 around", { fill: "var(--grey)" }),
    KEY.map((entry, row) => legend(0, below + 54 + 20 * row, [entry])),
  );
  const shards = ranks.map((owner) => {
    const [x, y] = place((owner + step) % P, radius + CARRIED);
    return shard({ owner, rank: (owner + step) % P, x, y, drag: owner ? undefined : walk({ P, width, middle }) });
  });
  return { nodes, shards, bottom: below + 108 };
}

function processor({ rank, owner, place: [x, y] }) {
  const tip = { title: `processor ${rank}`, lines: [`its own queries meet the keys of ${owner}`] };
  return h(
    "g",
    { key: `processor ${rank}`, tip },
    h("circle", { cx: x, cy: y, r: 12, fill: "var(--Q)" }),
    label(x, y, rank, { anchor: "middle", weight: 650, fill: "var(--on-Q)" }),
  );
}

// The shard of K and V that a processor owns, at its place in this step.
function shard({ owner, rank, x, y, drag }) {
  const tip = { title: `K and V of ${owner}`, lines: [rank === owner ? "at home" : `visiting processor ${rank}`] };
  return h(
    "g",
    { key: `shard ${owner}`, tip, drag, class: "mark", style: at(x, y) },
    h("rect", { x: -14, y: -14, width: 28, height: 28, fill: "transparent" }),
    h("rect", { x: -12, y: -8, width: 12, height: 16, fill: "var(--K)" }),
    h("rect", { x: 0, y: -8, width: 12, height: 16, fill: "var(--V)" }),
    h("rect", {
      x: -12,
      y: -8,
      width: 24,
      height: 16,
      fill: "none",
      stroke: drag ? "var(--ink)" : "none",
      "stroke-width": 2.5,
    }),
    label(0, 0, owner, { anchor: "middle", weight: 650, fill: "var(--on-K)" }),
  );
}

// The handle of shard 0, which begins at the top: its place on the circle is the step.
function walk({ P, width, middle }) {
  const turn = (point) => Math.atan2(point.x - width / 2, middle - point.y) / (2 * Math.PI);
  return {
    field: "step",
    name: "shard 0 of the ring",
    grows: [1, 1],
    to: (point) => ({ step: Math.round((turn(point) + 1) * P) % P }),
  };
}

function panel({ trace, run, step, longest, x, y, width, side, clocks, words }) {
  const place = (name) => `${run.name} ${name}`;
  const top = y + TOP;
  return h(
    "g",
    { key: place("panel"), class: "compared" },
    label(x, y + 8, run.name, { weight: 650, size: 15 }),
    label(x, y + 28, ABOUT[run.name], { fill: "var(--grey)" }),
    tokens({ trace, run, x, y: y + 42, width, place }),
    square({ trace, run, step, x: x + 24, y: top, side, place }),
    time({
      trace,
      run,
      step,
      longest,
      x: x + clocks.x,
      y: y + clocks.y,
      width: width - clocks.x,
      place,
      words: { x, y: y + words },
    }),
  );
}

// The owners of the tokens, from left to right: of 2 P stretches, or of the first 2 P tokens.
function tokens({ trace, run, x, y, width, place }) {
  const unit = width / (2 * trace.P);
  return run.tokens.map((rank, at) => {
    const striped = run.name === "striped";
    const from = striped ? at : (at * trace.N) / (2 * trace.P);
    const title = striped
      ? `token ${at}, and every ${trace.P}th after it`
      : `tokens ${from} to ${from + trace.N / (2 * trace.P) - 1}`;
    return [
      h("rect", {
        key: place(`token ${at}`),
        x: x + at * unit,
        y,
        width: unit,
        height: STRIP,
        fill: "var(--K)",
        "fill-opacity": 0.25 + (0.55 * rank) / trace.P,
        stroke: "var(--paper)",
        tip: { title, lines: [`belong to processor ${rank}`] },
      }),
      label(x + (at + 0.5) * unit, y + STRIP / 2, rank, { anchor: "middle" }),
    ];
  });
}

// The blocks of scores: a row per processor, a column per owner of keys. The filled share is what the mask shows.
function square({ trace, run, step, x, y, side, place }) {
  const unit = side / trace.P;
  const blocks = run.steps.flatMap((ranks, s) =>
    ranks.map((one, rank) => block({ ...one, all: trace.block, rank, s, step, x, y, unit })),
  );
  const now = blocks.filter((one) => one.s === step);
  const filled = (some) => some.map((one) => one.filled);
  return [
    boxes(place("blocks"), blocks, { fill: "var(--paper)", stroke: "var(--pale)" }),
    boxes(place("before"), filled(blocks.filter((one) => one.s < step)), { fill: "var(--S)" }),
    boxes(place("now"), filled(now), { fill: "var(--P)" }),
    boxes(place("edges"), now, { fill: "none", stroke: "var(--ink)", "stroke-width": 2.5 }),
    blocks.map(({ words }) => words),
    blocks.map((one) => spot(place(one.key), one, one.tip)),
    run.tokens
      .slice(0, trace.P)
      .map((_, rank) => [
        label(x - 8, y + (rank + 0.5) * unit, rank, { anchor: "end", size: 12 }),
        label(x + (rank + 0.5) * unit, y - 9, rank, { anchor: "middle", size: 12 }),
      ]),
    label(x + side, y + side + 12, "keys →", { anchor: "end", fill: "var(--grey)", size: 12 }),
    label(x, y + side + 12, "↓ queries", { fill: "var(--grey)", size: 12 }),
  ];
}

// One block with its filled share and the number of its step, which is in a corner, or in the middle of a small block.
function block({ owner, scores, all, rank, s, step, x, y, unit }) {
  const [left, top] = [x + owner * unit, y + rank * unit];
  const share = scores / all;
  const [done, now, small] = [s <= step, s === step, unit < 26];
  const words = scores
    ? `${times(scores, "score")}, ${digits(100 * share, 3)}% of the block`
    : "the mask hides all of it";
  const high = done ? share * (unit - 2) : 0;
  const cell = { x: left + 1, y: top + 1, width: unit - 2, height: unit - 2 };
  const on = now ? "var(--on-P)" : "var(--on-S)";
  const fill = high > (small ? unit / 2 : unit - 8) ? on : done && !scores ? "var(--grey)" : "var(--ink)";
  const middle = { x: left + unit / 2, y: top + unit / 2 };
  const number = small ? middle : { x: left + 11, y: top + 0.29 * Math.min(unit, 41) };
  return {
    ...cell,
    s,
    key: `cell ${rank} ${owner}`,
    tip: { title: `queries of ${rank}, keys of ${owner}`, lines: [`step ${s}: ${words}`] },
    filled: { ...cell, y: top + unit - 1 - high, height: high },
    words: [
      label(number.x, number.y, s, { key: `step ${rank} ${owner}`, anchor: "middle", size: 12, fill }),
      done &&
        !scores &&
        unit > 40 &&
        label(middle.x + 4, middle.y + 4, "–", {
          key: `none ${rank} ${owner}`,
          anchor: "middle",
          size: 14,
          fill: "var(--grey)",
        }),
    ],
  };
}

// The time of each processor: it computes, then waits until the slowest one has done the step.
function time({ trace, run, step, longest, x, y, width, place, words }) {
  const scale = (width - 20) / longest;
  const left = x + 20;
  const passed = run.steps.slice(0, step + 1);
  const slowest = passed.map((ranks) => Math.max(...ranks.map(({ scores }) => scores)));
  const spent = slowest.reduce((sum, scores) => sum + scores, 0);
  const work = passed.flat().reduce((sum, { scores }) => sum + scores, 0);
  const idle = spent ? 1 - work / (spent * trace.P) : 0;
  const high = trace.P * ROW;
  const ideal = left + trace.ideal * scale;
  const spans = passed.flatMap((ranks, s) => {
    const begun = left + scale * slowest.slice(0, s).reduce((sum, scores) => sum + scores, 0);
    return ranks.map((one, rank) => span({ ...one, rank, s, slowest: slowest[s], x: begun, y: y + rank * ROW, scale }));
  });
  return [
    passed[0].map((_, rank) => label(left - 6, y + rank * ROW + (ROW - 6) / 2, rank, { anchor: "end", size: 12 })),
    lapse(
      "before",
      spans.filter(({ s }) => s < step),
      "S",
    ),
    lapse(
      "now",
      spans.filter(({ s }) => s === step),
      "P",
    ),
    spans.map((one) => spot(place(one.key), one, one.tip)),
    h("line", {
      key: place("ideal"),
      x1: ideal,
      x2: ideal,
      y1: y - 8,
      y2: y + high + 4,
      stroke: "var(--ink)",
      "stroke-dasharray": "4 3",
      tip: { title: "the ideal", lines: ["every processor computes as much as any other, all the time"] },
    }),
    rule(left, x + width, y + high, { color: "var(--pale)", key: place("floor") }),
    label(Math.min(ideal, x + width - 16), y + high + 14, "ideal", { anchor: "middle", size: 12, fill: "var(--grey)" }),
    label(words.x, words.y, `idle so far: ${Math.round(100 * idle)}%`, { weight: 600 }),
    label(words.x, words.y + 18, `in all: ${digits(run.makespan / trace.ideal, 3)} × the ideal`, {
      fill: "var(--grey)",
    }),
  ];
}

// Spans of time, busy in a colour and idle in grey.
function lapse(key, spans, color) {
  const idle = spans.map(({ idle }) => idle);
  const busy = spans.map(({ busy }) => busy);
  return [
    boxes(`idle ${key}`, idle, { fill: "var(--standard)", "fill-opacity": 0.35 }),
    boxes(`hatch ${key}`, idle, { fill: "url(#stored)" }),
    boxes(`busy ${key}`, busy, { fill: `var(--${color})`, stroke: "var(--paper)" }),
  ];
}

// One step of one processor: it is busy, then idle.
function span({ owner, scores, rank, s, slowest, x, y, scale }) {
  const waits = scores < slowest;
  const rest = waits ? `then idle for as long as ${times(slowest - scores, "score")} take` : "nobody is slower";
  const box = { x, y, width: slowest * scale, height: ROW - 6 };
  return {
    ...box,
    s,
    key: `span ${s} ${rank}`,
    tip: { title: `processor ${rank}, step ${s}`, lines: [`keys of ${owner}: ${times(scores, "score")}`, rest] },
    busy: { ...box, width: scores * scale },
    idle: { ...box, width: waits ? box.width : 0 },
  };
}
