// The memory that attention holds, as an area in the card's memory: a row for each token, N wide or d wide. One scale.

import { h } from "./svg.js";
import { amount, digits, fits, grouped } from "./words.js";
import { nearest } from "./state.js";
import { WIDE, knob, label, lines, ruler } from "./marks.js";

const SPILL = 1.4; // what exceeds a card is drawn up to this many sides of the card
const EDGE = 3; // room for the frame of a card
const WORDS = 196; // width of the words beside both cards
const THROUGH = { "pointer-events": "none" }; // the pointer reaches what is behind
const LOOKS = {
  standard: { color: "var(--standard)", name: "standard attention" },
  fused: { color: "var(--flash)", name: "FlashAttention" },
};

export function draw({ trace, step, width }) {
  const wide = width >= WIDE;
  const side = wide ? Math.min((width - 64 - WORDS) / (2 * SPILL), 280) : Math.min(width / SPILL - 2, 230);
  const top = 46;
  const spilled = SPILL * side;
  const second = wide ? { x: spilled + 34, y: 0 } : { x: EDGE, y: top + spilled + 24 };
  const words = wide ? { x: second.x + spilled + 30, y: 8 } : { x: 0, y: second.y + top + side + 30 };
  const axis = wide ? top + spilled + 40 : words.y + 262;
  const shared = { trace, step, side, top };
  return {
    height: axis + 104,
    nodes: [
      h(
        "g",
        { key: "standard", class: "compared" },
        card({ ...shared, name: "standard", x: EDGE, y: 0, room: wide ? spilled : width }),
      ),
      h(
        "g",
        { key: "fused", class: "compared" },
        card({ ...shared, name: "fused", ...second, room: wide ? spilled : width }),
      ),
      h("g", { key: "words" }, wordsOf({ trace, step, ...words })),
      h("g", { key: "ruler" }, lengths({ trace, step, y: axis, width })),
    ],
  };
}

// The card's memory as a square, and in it, to scale, what one way holds: as many rows as tokens.
function card({ trace, step, side, top, name, x, y, room }) {
  const need = trace.ways[name].needs[step];
  const area = areaOf({ trace, step, name, side, left: x, below: y + top });
  const over = need.total > trace.room;
  const square = { x, y: y + top, width: side, height: side };
  const around = { x: x - 1.5, y: y + top - 1.5, width: side + 3, height: side + 3 }; // hides no thin strip
  return [
    heading({ trace, name, need, over, x, y, room }),
    h("rect", { key: "card", ...square, fill: "var(--fast)", "fill-opacity": 0.1, tip: cardTip(trace, name) }),
    holdings(need, area),
    over && h("path", { key: "outside", d: outside(area), fill: "var(--wrong)", "fill-opacity": 0.35, ...THROUGH }),
    h("rect", {
      key: "frame",
      ...around,
      fill: "none",
      stroke: over ? "var(--wrong)" : "var(--fast)",
      "stroke-width": 3,
      ...THROUGH,
    }),
    name === "fused" ? thinNames({ trace, area, over }) : squareName(area),
    Math.max(area.full, area.across) > area.limit && [
      h("rect", { x: area.corner.x - 84, y: area.corner.y - 32, width: 66, height: 22, rx: 3, fill: "var(--paper)" }),
      label(area.corner.x - 51, area.corner.y - 21, "and on →", { anchor: "middle", size: 12 }),
    ],
    name === "standard" &&
      area.full <= area.limit &&
      knob({
        key: "corner",
        ...area.corner,
        drag: lengthAt({ trace, left: x, side }),
        tip: { title: `N = ${grouped(trace.lengths[step])}`, lines: ["pull the corner"] },
      }),
  ];
}

// The area of what one way holds, in pixels. full and across: its height and width; tall: the drawn part of the height;
// square: the part of the width that N × N takes; limit: the largest drawn size; corner: the end of the drawn part.
function areaOf({ trace, step, name, side, left, below }) {
  const need = trace.ways[name].needs[step];
  // The height of N rows, the same for both ways.
  const height = Math.sqrt(trace.ways.standard.needs[step].total / trace.room) * side;
  const folded = name === "fused" && height > side; // the rows continue in the next column
  const limit = SPILL * side;
  const full = folded ? side : height;
  const tall = Math.min(full, limit);
  const across = ((need.total / trace.room) * side * side) / full;
  const square = (need.square / need.total) * across;
  const corner = { x: left + Math.min(across, limit), y: below + tall };
  return { left, below, side, folded, limit, full, tall, across, square, corner };
}

function heading({ trace, name, need, over, x, y, room }) {
  const title = `${LOOKS[name].name}: ${amount(need.total)}`;
  const worth = need.total / trace.room;
  const cards =
    worth >= 1
      ? `${worth < 1000 ? digits(worth, 3) : grouped(Math.round(worth))} cards`
      : `${digits(100 * worth, 3)}% of the card`;
  return [
    label(x, y + 8, fits(title, room, 15) ? title : title.replace(" attention", ""), { weight: 650, size: 15 }),
    label(x, y + 30, cards + (over ? ": does not fit" : ""), {
      fill: over ? "var(--wrong)" : "var(--grey)",
      weight: over ? 700 : undefined,
    }),
  ];
}

const cardTip = (trace, name) => ({
  title: `memory of one ${trace.card}`,
  lines: [
    `${digits(trace.room / 2 ** 30)} GiB, which are ${amount(trace.room)}`,
    `${LOOKS[name].name} fills it with ${grouped(trace.ways[name].longest)} tokens`,
  ],
});

// What is held: N × N, if anything, and beside it N × d.
function holdings(need, { left, below, folded, limit, tall, across, square }) {
  const box = (key, color, start, stop, tip) => {
    const width = Math.max(Math.max(Math.min(stop, limit), 0) - start, 0.5);
    const place = { x: left + start, y: below, width, height: tall, class: "grow" };
    return start < limit && h("rect", { key, ...place, fill: color, tip });
  };
  const squareTip = {
    title: `N × N: ${amount(need.square)}`,
    lines: ["every head's scores, whole", `grows with N²: twice the tokens, four times as much`],
  };
  const thinTip = {
    title: `N × d: ${amount(need.thin + need.rows)}`,
    lines: [
      `Q, K, V, O, in training with their gradients: ${amount(need.thin)}`,
      need.rows ? `one or two numbers per row: ${amount(need.rows)}` : "grows with N",
    ].concat(folded ? ["folded: the rows of so many tokens are higher than the card"] : []),
  };
  return [
    need.square > 0 && box("square", "var(--S)", 0, square, squareTip),
    box("thin", "var(--Q)", square, across, thinTip),
  ];
}

// The outline of the part that is outside of the card.
const outside = ({ left, below, side, corner }) =>
  `M ${left + side} ${below} H ${corner.x} V ${corner.y} H ${left} V ${below + side} H ${left + side} Z`;

function thinNames({ trace, area: { left, below, side, folded, limit, tall, across }, over }) {
  const strip = {
    x: left + Math.max(Math.min(across, limit), 0) + 8,
    y: below + Math.max(Math.min(tall, side) / 2, 16),
  };
  return [
    !over && label(left + side - 8, below + side - 14, trace.card, { anchor: "end", weight: 600 }),
    across < 0.75 * side && label(strip.x, strip.y, folded ? "N × d, folded" : "N × d"),
  ];
}

function squareName({ left, below, tall, square }) {
  return (
    square > 60 &&
    tall > 40 && [
      h("rect", { x: left + 8, y: below + 8, width: 52, height: 22, rx: 3, fill: "var(--paper)", ...THROUGH }),
      label(left + 34, below + 19, "N × N", { anchor: "middle" }),
    ]
  );
}

// The corner of the square, to pull to another number of tokens, as far as it is drawn.
function lengthAt({ trace, left, side }) {
  const all = trace.ways.standard.needs.map(({ total }) => Math.sqrt(total / trace.room));
  const sides = all.filter((one) => one <= SPILL);
  const wanted = ({ x }) => nearest(sides, Math.max((x - left) / side, 0.001));
  return { field: "step", to: (point) => ({ step: sides.indexOf(wanted(point)) }) };
}

function wordsOf({ trace, step, x, y }) {
  const { standard, fused } = trace.ways;
  const twice = trace.lengths.indexOf(2 * trace.lengths[step]);
  const memory = (way) => `× ${digits(way.needs[twice].total / way.needs[step].total, 3)}`;
  const time = (way) => `× ${digits(way.seconds[twice] / way.seconds[step], 3)}`;
  const rows = fused.lasts
    ? [
        `standard: at least ${standard.lasts[step]}`,
        `by ${standard.clocks[step]}`,
        `fused: at least ${fused.lasts[step]}`,
        `by ${fused.clocks[step]}`,
      ]
    : [`no ${trace.dtype} rate is known`];
  const longer = fused.lasts ? [`standard time ${time(standard)}`, `fused time ${time(fused)}`] : [];
  const more = twice < 0 ? [] : [`standard memory ${memory(standard)}`, `fused memory ${memory(fused)}`, ...longer];
  return [
    label(x, y, `N = ${grouped(trace.lengths[step])}`, { weight: 650, size: 15 }),
    label(x, y + 34, "time at the card's peaks", { weight: 600 }),
    lines(x, y + 54, rows),
    more.length > 0 && label(x, y + 142, "twice the tokens", { weight: 600 }),
    lines(x, y + 162, more),
  ];
}

const lasting = (way) => `which take at least ${way.ends}`;

function lengths({ trace, step, y, width }) {
  const { lengths: all, ways } = trace;
  const [first, last] = [Math.log(all[0]), Math.log(all.at(-1))];
  const at = (N) => Math.min(Math.max((Math.log(Math.max(N, 1)) - first) / (last - first), 0), 1);
  const spans = Object.entries(ways).map(([name, way]) => ({
    words: `${name}: fits until ${grouped(way.longest)} tokens${way.ends && width >= 600 ? `, ${lasting(way)}` : ""}`,
    color: LOOKS[name].color,
    start: 0,
    stop: at(way.longest),
    tip: {
      title: `${LOOKS[name].name} fits until ${grouped(way.longest)} tokens`,
      lines: way.ends ? [lasting(way)] : [],
    },
  }));
  const ticks = [
    [1024, "1 K"],
    [16384, "16 K"],
    [131072, "128 K"],
    [2 ** 20, "1 M"],
    [2 ** 23, "8 M"],
  ].map(([N, words]) => ({ at: at(N), words }));
  const drag = { field: "step", name: "tokens N", to: ({ x }) => ({ step: (x / width) * (all.length - 1) }) };
  const handle = {
    at: at(all[step]),
    drag,
    tip: { title: `N = ${grouped(all[step])}`, lines: ["pull, or use the arrow keys"] },
  };
  return [
    label(0, y - 14, "tokens N, on a logarithmic scale: pull the dot", { size: 12, fill: "var(--grey)" }),
    ruler({ key: "lengths", x: 0, y, width, spans, ticks, handle }),
  ];
}
