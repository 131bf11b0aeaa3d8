// Tiles with a corner to pull, rows and columns to scale; below, the memory that they must fit into, bytes to scale.

import { h } from "./svg.js";
import { digits, grouped, room, times, wrapped } from "./words.js";
import { nearest } from "./state.js";
import { WIDE, label, lines, memoryBox, rule, ruler, tile } from "./marks.js";

const NAMES = { Q: "Q", K: "K", V: "V", S_ij: "S", O_i: "O", m_i: "m", l_i: "l" };
const COLORS = { m: "standard", l: "standard" };
const SPILL = 1.7; // how far what bursts a memory is drawn, in lengths of the memory
const FAST = 44; // height of a memory
const FITS = { color: "var(--fast)", dash: "6 4" }; // outlines of blocks: the largest that fits, and the least that is enough
const ENOUGH = { color: "var(--ink)", dash: "2 3" };

export function draw({ trace, step, width }) {
  const now = trace.sizes[step];
  const wide = width >= WIDE;
  const across = wide ? Math.min(width * 0.42, 470) : width;
  const shape = tilesOf({ trace, now, width: across });
  const beside = wide ? { x: across + 50, y: 0, width: width - across - 52 } : { x: 0, y: shape.height + 26, width };
  const right = memories({ trace, now, ...beside });
  const axis = Math.max(shape.height, right.bottom) + 34;
  return {
    height: axis + 2 * 36 + 30,
    nodes: [
      h("g", { key: "tiles", class: "compared" }, shape.nodes),
      h("g", { key: "memories", class: "compared" }, right.nodes),
      h("g", { key: "ruler" }, sizes({ trace, now, y: axis, width })),
    ],
  };
}

// One visit: a tile of queries meets a tile of keys. Rows, columns and d in one unit, the same for all B.
function tilesOf({ trace, now, width }) {
  const { d, fits, enough } = trace;
  const most = trace.sizes.at(-1).B;
  const unit = Math.min((width - 26) / (most + 2 * d), 380 / (most + 2 * d));
  const [thick, side] = [d * unit, now.B * unit];
  const left = 22 + thick;
  const top = 26 + 2 * thick + 4;
  const bytes = Object.fromEntries([...now.shared, ...now.registers]);
  const where = (name) => (now.registers.some(([one]) => one === name) ? "in registers" : "in shared memory");
  const one = (name, x, y, wide, high, shape) => tile({
    key: name, x, y, width: wide, height: high, name: NAMES[name], letter: NAMES[name], current: now.refused !== null && name === "S_ij",
    tip: { title: `${NAMES[name]}: ${shape}`, lines: [`${room(bytes[name])} ${where(name)}`] },
  });
  const outline = (key, B, { color, dash }) => B > 0 && h("rect", { key, x: left, y: top, width: B * unit, height: B * unit, fill: "none", stroke: color, "stroke-width": 2, "stroke-dasharray": dash, "pointer-events": "none" });
  const drag = ({ x, y }) => {
    const all = trace.sizes.map(({ B }) => B);
    return { step: all.indexOf(nearest(all, Math.max(x - left, y - top) / unit)) };
  };
  const square = `${now.B} × ${now.B}`;
  const bottom = top + most * unit;
  return {
    height: bottom + 46,
    nodes: [
      label(0, 8, `tiles of ${square}`, { weight: 650, size: 15 }),
      one("V", left, 26, side, thick, `${now.B} × ${d}, keys across`),
      one("K", left, 26 + thick + 2, side, thick, `${now.B} × ${d}, keys across`),
      one("Q", left - thick - 2, top, thick, side, `${now.B} × ${d}`),
      one("S_ij", left, top, side, side, square),
      one("O_i", left + side + 2, top, thick, side, `${now.B} × ${d}`),
      outline("fits", fits, FITS),
      outline("enough", enough, ENOUGH),
      h("g", { key: "corner", drag, class: "mark", style: `transform: translate(${left + side}px, ${top + side}px)`, tip: { title: `B = ${now.B}`, lines: ["pull the corner"] } },
        h("rect", { x: -16, y: -16, width: 32, height: 32, fill: "transparent" }),
        h("circle", { r: 7, fill: now.refused ? "var(--wrong)" : "var(--ink)", stroke: "var(--paper)", "stroke-width": 2 })),
      sample(bottom + 14, FITS, fits ? `the largest that fits, ${fits} × ${fits}` : "nothing fits"),
      sample(bottom + 32, ENOUGH, enough ? `from ${enough} × ${enough} on arithmetic decides` : trace.sizes[0].ratio === null ? `no ${trace.dtype} rate is documented` : "arithmetic never decides here"),
    ],
  };
}

const sample = (y, { color, dash }, words) => [
  h("line", { x1: 0, x2: 34, y1: y, y2: y, stroke: color, "stroke-width": 2, "stroke-dasharray": dash }),
  label(42, y, words, { size: 12 }),
];

// What the tiles take of each memory, the card's answer, and the two times.
function memories({ trace, now, x, y, width }) {
  const { limits } = trace;
  const inRegisters = now.registers.length > 0;
  const scale = width / (SPILL * Math.max(limits.shared, inRegisters ? limits.registers : 0));
  const nodes = [];
  let down = y + 8;
  for (const [name, words] of [["shared", "shared memory of a block"], ["registers", "registers"]]) {
    if (name === "registers" && !inRegisters) continue;
    nodes.push(h("g", { key: name }, memory({ words: `${words}: ${now.takes[name]}`, tiles: now[name], limit: limits[name], scale, x, y: down, width })));
    down += FAST + 54;
  }
  const verdict = wrapped(now.refused ?? "It fits.", width, 14.5);
  nodes.push(h("g", { key: "verdict" }, lines(x, down + 6, verdict, { fill: now.refused ? "var(--wrong)" : "var(--ink)", weight: now.refused ? 650 : undefined })));
  down += 20 * verdict.length + 26;
  nodes.push(h("g", { key: "times" }, clocks({ trace, now, x, y: down, width })));
  return { nodes, bottom: down + 84 };
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
    return shown > 0 && tile({ key: name, x: start, y: top + 3, width: shown, height: FAST - 6, name: COLORS[letter] ?? letter, letter, tip: { title: letter, lines: [`${room(bytes)}, ${digits((100 * bytes) / limit, 3)}% of the room`] } });
  });
  return [
    label(x, y, `${words} of ${limit / 1024} KiB`, { weight: 600, fill: over ? "var(--wrong)" : "var(--ink)" }),
    memoryBox({ x, y: top, width: limit * scale, height: FAST, color }),
    packed,
    over && h("rect", { key: "burst", x: end, y: top - 1, width: Math.min(left, edge) - end, height: FAST + 2, fill: "var(--wrong)", "fill-opacity": 0.4, "pointer-events": "none" }),
    h("line", { key: "wall", x1: end, x2: end, y1: top - 6, y2: top + FAST + 6, stroke: color, "stroke-width": 4 }),
    over && label(Math.min(left, edge), top + FAST + 15, left > edge ? "bursts, and goes on →" : "bursts", { anchor: "end", weight: 650, fill: "var(--wrong)" }),
  ];
}

function clocks({ trace, now, x, y, width }) {
  if (now.ratio === null) return [label(x, y, `no ${trace.dtype} rate is documented for this card`, { fill: "var(--grey)" })];
  const most = Math.max(...trace.sizes.map(({ ratio }) => ratio), 1);
  const scale = (width - 150) / most;
  const bar = (row, name, value, color, words) => [
    label(x + 74, y + 24 + row * 24, name, { anchor: "end" }),
    h("rect", { key: name, x: x + 80, y: y + 16 + row * 24, width: value * scale, height: 16, fill: color, class: "grow", tip: { title: `${name}: ${digits(value, 3)} × arithmetic`, lines: [`N = ${grouped(trace.N)}: K and V are read ${times(now.reads)}`] } }),
    label(x + 86 + value * scale, y + 24 + row * 24, words),
  ];
  return [
    label(x, y, `time for N = ${grouped(trace.N)}; K and V are read ${times(now.reads)}`, { weight: 600 }),
    bar(0, "bytes", now.ratio, "var(--standard)", `${digits(now.ratio, 3)} ×`),
    bar(1, "arithmetic", 1, "var(--flash)", "1"),
    rule(x + 80 + scale, x + 80 + scale, y + 14, { key: "one" }),
  ];
}

function sizes({ trace, now, y, width }) {
  const all = trace.sizes.map(({ B }) => B);
  const [first, last] = [all[0], all.at(-1)];
  const at = (B) => (B - first) / (last - first);
  const { fits, enough } = trace;
  const spans = [
    { words: fits ? `fits, to B = ${fits}` : "nothing fits", color: "var(--fast)", start: 0, stop: fits ? at(fits) : 0, tip: { title: `fits to B = ${fits}`, lines: [trace.card] } },
    { words: enough ? `arithmetic decides, from B = ${enough}` : "arithmetic decides: nowhere", color: "var(--flash)", start: enough ? at(enough) : 1, stop: 1, tip: { title: `arithmetic decides from B = ${enough}`, lines: ["before that, the bytes take longer"] } },
  ];
  const ticks = [16, 64, 128, 192, 256, 320, 400].map((B) => ({ at: at(B), words: String(B) }));
  const drag = ({ x }) => ({ step: all.indexOf(nearest(all, first + (x / width) * (last - first))) });
  return [ruler({ key: "sizes", x: 0, y, width, spans, ticks, handle: { at: at(now.B), drag, tip: { title: `B = ${now.B}`, lines: ["pull, or use the clock's keys"] } } })];
}
