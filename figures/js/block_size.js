// Curves over the size of a tile: the time of its bytes, and the share of each memory; below, its tiles to scale.

import { h } from "./svg.js";
import { amount, digits, grouped, room, times, wrapped } from "./words.js";
import { SIZE, WIDE, at, label, lines, memoryBox, rule, ruler, tile } from "./marks.js";

const NAMES = { Q: "Q", K: "K", V: "V", S_ij: "S", O_i: "O", m_i: "m", l_i: "l" };
const COLORS = { m: "standard", l: "standard" };
const ROOMS = { shared: "shared memory of a block", registers: "registers" };
const SPILL = 1.7; // tiles that exceed a memory are drawn up to this many lengths of it
const FAST = 44; // height of a memory
const CELL = FAST + 54; // height of a memory with its words
const HIGH = 215; // height of the plot
const LEFT = 56; // room at the left of the plot, for its numbers
const LOOKS = {
  ratio: { stroke: "var(--ink)" },
  shared: { stroke: "var(--fast)" },
  registers: { stroke: "var(--fast)", "stroke-dasharray": "7 4" },
};

export function draw({ trace, step, width }) {
  const now = trace.sizes[step];
  const curves = Object.keys(LOOKS).filter((name) => now.times[name] !== null);
  const rows = readings({ trace, now, width });
  const plot = { x: LEFT, y: rows.height + 14, width: width - LEFT - 12, height: HIGH };
  const axis = plot.y + HIGH + 26;
  const below = memories({ trace, now, y: axis + 2 * 36 + 52, width });
  return {
    height: below.bottom,
    nodes: [
      h("g", { key: "readings" }, rows.nodes),
      h("g", { key: "plot" }, plotted({ trace, now, curves, plot })),
      h("g", { key: "ruler" }, sizes({ trace, now, plot, y: axis })),
      h("g", { key: "memories" }, below.nodes),
    ],
  };
}

// What each curve shows, and its value here.
function readings({ trace, now, width }) {
  const { ratio, shared, registers } = now.times;
  const moved = `${amount(now.moved)} for ${grouped(trace.N)} tokens: K and V are read ${times(now.reads)}`;
  const texts = {
    ratio:
      ratio === null
        ? `no ${trace.dtype} rate is documented; ${moved}`
        : `bytes take ${digits(ratio, 3)} × arithmetic (${moved})`,
    shared: `${registers === null ? "the tiles" : "Q, K, V"} take ${digits(shared, 3)} × the shared memory of a block`,
    registers: registers !== null && `S, O, m, l take ${digits(registers, 3)} × the registers`,
  };
  let y = 10;
  const nodes = Object.keys(texts)
    .filter((name) => texts[name])
    .map((name) => {
      const words = wrapped(texts[name], width - 46, SIZE + 0.5);
      const top = y;
      y += 20 * words.length;
      const sample = now.times[name] !== null && h("path", { d: `M0 ${top}H34`, "stroke-width": 3, ...LOOKS[name] });
      return h("g", { key: name }, sample, lines(44, top, words));
    });
  return { nodes, height: y };
}

// The curves on a logarithmic axis: at 1 the memory is full, and bytes take as long as arithmetic.
function plotted({ trace, now, curves, plot }) {
  const all = trace.sizes.flatMap((size) => curves.map((name) => size.times[name]));
  const power = (round, value) => 2 * round(Math.log2(value) / 2); // an even exponent of 2: steps of 4 times
  const [low, high] = [power(Math.floor, Math.min(...all, 0.9)), power(Math.ceil, Math.max(...all, 1.1))];
  const x = (B) => plot.x + fractionOf(trace, B) * plot.width;
  const y = (value) => plot.y + ((high - Math.log2(value)) / (high - low)) * plot.height;
  const path = (name) =>
    trace.sizes.map((size, n) => `${n ? "L" : "M"}${x(size.B).toFixed(1)} ${y(size.times[name]).toFixed(1)}`).join("");
  const drag = dragged(trace, plot);
  return [
    grid({ low, high, plot, y }),
    curves.map((name) => h("path", { key: name, d: path(name), fill: "none", "stroke-width": 3, ...LOOKS[name] })),
    marker({ B: now.B, x: x(now.B), plot, drag }),
    curves.map((name) => dot({ name, now, x: x(now.B), y: y(now.times[name]), drag })),
  ];
}

// The lines of the axis, and the ground below 1. low and high: its ends, as powers of 2.
function grid({ low, high, plot, y }) {
  const [right, bottom] = [plot.x + plot.width, plot.y + plot.height];
  const ticks = Array.from({ length: (high - low) / 2 + 1 }, (_, n) => low + 2 * n);
  const good = { x: plot.x, y: y(1), width: plot.width, height: bottom - y(1) };
  return [
    h("rect", { key: "good", ...good, fill: "var(--fast)", "fill-opacity": 0.09 }),
    ticks.map((exponent) => [
      exponent !== 0 &&
        rule(plot.x, right, y(2 ** exponent), { color: "var(--pale)", width: 1, key: `line ${exponent}` }),
      label(plot.x - 8, y(2 ** exponent), exponent < 0 ? `1/${2 ** -exponent} ×` : `${2 ** exponent} ×`, {
        anchor: "end",
        size: 12,
        fill: "var(--grey)",
      }),
    ]),
    rule(plot.x, right, y(1), { width: 2, key: "one" }),
    label(right - 8, bottom - 12, "below 1 ×: it fits, and arithmetic decides", {
      size: 12,
      anchor: "end",
      fill: "var(--grey)",
    }),
  ];
}

// The line at the size of the tiles, to pull.
function marker({ B, x, plot, drag }) {
  const down = `M0 ${plot.y}V${plot.y + plot.height}`;
  return h(
    "g",
    {
      key: "marker",
      drag,
      class: "mark",
      style: at(x, 0),
      tip: { title: `B = ${B}`, lines: ["pull the line"] },
    },
    h("rect", { x: -12, y: plot.y, width: 24, height: plot.height, fill: "transparent" }),
    h("path", { d: down, stroke: "var(--ink)", "stroke-width": 1.5, "stroke-dasharray": "2 3" }),
  );
}

// What a curve is a multiple of, and what a value above and below 1 means.
const MEANS = {
  ratio: { unit: "arithmetic", above: "bytes decide", below: "arithmetic decides" },
  shared: { unit: "the shared memory of a block", above: "too large", below: "it has room" },
  registers: { unit: "the registers", above: "too large", below: "it has room" },
};

function dot({ name, now, x, y, drag }) {
  const value = now.times[name];
  const { unit, above, below } = MEANS[name];
  return h("circle", {
    key: `dot ${name}`,
    class: "mark",
    style: at(x, y),
    r: 5.5,
    fill: name !== "ratio" && value > 1 ? "var(--wrong)" : LOOKS[name].stroke,
    stroke: "var(--paper)",
    "stroke-width": 1.5,
    tip: { title: `B = ${now.B}: ${digits(value, 3)} × ${unit}`, lines: [value > 1 ? above : below] },
    drag,
  });
}

const fractionOf = ({ sizes }, B) => (B - sizes[0].B) / (sizes.at(-1).B - sizes[0].B);

const dragged = ({ sizes }, plot) => ({
  field: "step",
  to: ({ x }) => ({ step: ((x - plot.x) / plot.width) * (sizes.length - 1) }),
});

// How much of each memory the tiles take, and the card's answer.
function memories({ trace, now, y, width }) {
  const { limits } = trace;
  const names = Object.keys(ROOMS).filter((name) => now[name].length);
  const wide = width >= WIDE;
  const columns = wide ? names.length : 1;
  const space = (width - 40 * (columns - 1)) / columns;
  const place = (cell) => ({ x: (cell % columns) * (space + 40), y: y + CELL * Math.floor(cell / columns) });
  const scale = space / (SPILL * Math.max(...names.map((name) => limits[name])));
  const boxes = names.map((name, cell) =>
    h(
      "g",
      { key: name, class: "compared" },
      memory({
        words: `${ROOMS[name]}: ${now.takes[name]}`,
        tiles: now[name],
        limit: limits[name],
        scale,
        ...place(cell),
        width: space,
      }),
    ),
  );
  const below = place(names.length).y;
  const verdict = wrapped(now.refused ?? "It fits.", width, 14.5);
  const look = { fill: now.refused ? "var(--wrong)" : "var(--ink)", weight: now.refused ? 650 : undefined };
  return {
    nodes: [boxes, h("g", { key: "verdict" }, lines(0, below, verdict, look))],
    bottom: below + 20 * (wide ? 2 : 5),
  };
}

function memory({ words, tiles, limit, scale, x, y, width }) {
  const used = tiles.reduce((sum, [, bytes]) => sum + bytes, 0);
  const over = used > limit;
  const color = over ? "var(--wrong)" : "var(--fast)";
  const top = y + 18;
  const end = x + limit * scale;
  const edge = x + width - 4;
  let left = x;
  const packed = tiles.map(([name, bytes]) => {
    const start = left;
    left += bytes * scale;
    const letter = NAMES[name];
    const shown = Math.min(left, edge) - start;
    return (
      shown > 0 &&
      tile({
        key: name,
        x: start,
        y: top + 3,
        width: shown,
        height: FAST - 6,
        name: COLORS[letter] ?? letter,
        letter,
        tip: { title: letter, lines: [`${room(bytes)}, ${digits((100 * bytes) / limit, 3)}% of the room`] },
      })
    );
  });
  return [
    label(x, y, `${words} of ${limit / 1024} KiB`, { weight: 600, fill: over ? "var(--wrong)" : "var(--ink)" }),
    memoryBox({ x, y: top, width: limit * scale, height: FAST, color }),
    packed,
    over &&
      h("rect", {
        key: "burst",
        x: end,
        y: top - 1,
        width: Math.min(left, edge) - end,
        height: FAST + 2,
        fill: "var(--wrong)",
        "fill-opacity": 0.4,
        "pointer-events": "none",
      }),
    h("line", { key: "wall", x1: end, x2: end, y1: top - 6, y2: top + FAST + 6, stroke: color, "stroke-width": 4 }),
    over &&
      label(Math.min(left, edge), top + FAST + 15, left > edge ? "bursts, and goes on →" : "bursts", {
        anchor: "end",
        weight: 650,
        fill: "var(--wrong)",
      }),
  ];
}

function sizes({ trace, now, plot, y }) {
  const { fits, enough } = trace;
  const spans = [
    {
      words: fits ? `fits, to B = ${fits}` : "nothing fits",
      color: "var(--fast)",
      start: 0,
      stop: fits ? fractionOf(trace, fits) : 0,
      tip: { title: `fits to B = ${fits}`, lines: [trace.card] },
    },
    {
      words: enough
        ? `arithmetic decides, from B = ${enough}`
        : trace.sizes[0].times.ratio === null
          ? `no ${trace.dtype} rate is documented`
          : "arithmetic decides: nowhere",
      color: "var(--ink)",
      start: enough ? fractionOf(trace, enough) : 1,
      stop: 1,
      tip: { title: `arithmetic decides from B = ${enough}`, lines: ["before that, the bytes take longer"] },
    },
  ];
  const ticks = [16, 64, 128, 192, 256, 320, 400].map((B) => ({ at: fractionOf(trace, B), words: String(B) }));
  const handle = {
    at: fractionOf(trace, now.B),
    drag: { ...dragged(trace, plot), name: "size of a tile, B" },
    tip: { title: `B = ${now.B}`, lines: ["pull, or use the arrow keys"] },
  };
  return [ruler({ key: "sizes", x: plot.x, y, width: plot.width, spans, ticks, handle })];
}
