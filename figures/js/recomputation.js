// Above, the backward pass tile by tile; below, the time of its bytes and products and of another pass's, in one scale.

import { h } from "./svg.js";
import { amount, digits, fits, room, times } from "./words.js";
import { WIDE, at, edges, label, legend, lines, memoryBox, rule, slot, tile } from "./marks.js";

const STRIP = 24; // thickness of a tensor of d columns beside the scores
const THIN = 9; // thickness of a tensor of one number per row
const LEFT = { Q: [0, STRIP], dO: [28, STRIP], O: [56, STRIP], lse: [86, THIN], delta: [100, THIN] };
const ABOVE = { dV: 0, dK: 27, V: 54, K: 81 };
const SCORES = [116, 110]; // their upper left corner
const RESULTS = ["delta", "dQ", "dK", "dV"];
const COLORS = { dQ: "Q", dK: "K", dV: "V", dO: "O", lse: "standard", delta: "standard", P_ij: "P", dS_ij: "S" };
const FAST = 44; // height of the fast memory
const LANE = 18;

export function draw({ trace, state, step, width }) {
  const now = trace.steps[step];
  const done = trace.steps.slice(1, step + 1);
  const wide = width >= WIDE;
  const side = wide ? 210 : Math.min(width - SCORES[0] - STRIP - 6, 270);
  const beside = wide ? { x: SCORES[0] + side + STRIP + 50, y: 0 } : { x: 0, y: SCORES[1] + side + 52 };
  const squares = {
    x: beside.x,
    y: beside.y + (wide ? 226 : 258),
    side: Math.min(wide ? side / 2 : (width - 40) / 3, (width - beside.x - 38) / 3),
    words: width - beside.x,
  };
  const below = (wide ? SCORES[1] + side : squares.y + (trace.passes[0].squares.length ? squares.side + 34 : -40)) + 62;
  const place = placing(trace, side);
  const fast = { ...beside, y: beside.y + 62, width: width - beside.x - 2 };
  const inside = packed(trace, now, fast);
  const last = trace.passes[1].parts.at(-1).stop;
  return {
    height: below + 2 * 78 + 62,
    nodes: [
      h("g", { key: "cells" }, cells({ trace, now, done, place })),
      h("g", { key: "strips" }, strips({ trace, now, done, place, side, inside, fast })),
      h("g", { key: "beside" }, status({ trace, now, last, ...beside })),
      h("g", { key: "fast" }, memoryBox({ ...fast, height: FAST, color: "var(--fast)" })),
      h(
        "g",
        { key: "inside" },
        inside.map((one) => heldTile({ ...one, y: fast.y + 2, done, place })),
        bursts(trace) && limit({ trace, ...fast }),
      ),
      h(
        "g",
        { key: "legend" },
        wide
          ? legend(beside.x, fast.y + FAST + 70, KEY)
          : KEY.map((entry, row) => legend(0, fast.y + FAST + 70 + 19 * row, [entry])),
      ),
      h("g", { key: "squares" }, kept({ trace, now, ...squares })),
      h("g", { key: "time" }, timelines({ trace, now, y: below, width })),
      h("g", { key: "grips" }, grips({ trace, state, step, side, place })), // last, so that no tile covers a handle
    ],
  };
}

// A tile in fast memory. A tile that is loaded or rebuilt again is a new element, and moves in from its place.
function heldTile({ name, bytes, x, y, width, done, place }) {
  const came = done.findLastIndex((one) => one.name === name && one.kind !== "store");
  return tile({
    key: `${name} ${came}`,
    x,
    y,
    width,
    height: FAST - 4,
    name: COLORS[name] ?? name,
    letter: name.split("_")[0],
    from: came < 0 ? undefined : place(name, done[came].span),
    tip: { title: name.replace("_", " "), lines: [`${room(bytes)} of fast memory`] },
  });
}

// The tile of this step, to pull to another one, and the edges of the tiles; a replay has no edges.
function grips({ trace, state, step, side, place }) {
  const [x, y] = SCORES;
  const unit = side / trace.N;
  const all = trace.steps.flatMap((one, at) => (one.kind === "rebuild" ? [{ at, ...place("P_ij", one.span) }] : []));
  const here = all.findLast(({ at }) => at <= step) ?? all[0];
  const away = (one, point) => Math.hypot(one.x + one.width / 2 - point.x, one.y + one.height / 2 - point.y);
  const best = (point) => (one, other) =>
    away(one, point) - away(other, point) || Math.abs(one.at - step) - Math.abs(other.at - step);
  const drag = {
    field: "step",
    name: "tile of P",
    grows: [1, 1],
    values: all.map(({ at }) => at),
    to: (point) => ({ step: all.toSorted(best(point))[0].at }),
  };
  const look = {
    width: here.width,
    height: here.height,
    fill: "transparent",
    stroke: trace.steps[step].held.length ? "var(--ink)" : "none", // no frame when the pass is done
    "stroke-width": 2.5,
  };
  const tip = { title: "the tile that was rebuilt last", lines: ["pull it to another one: the clock goes there"] };
  return [
    h("g", { key: "hand", drag, tip, class: "mark", style: at(here.x, here.y) }, h("rect", look)),
    state.Br && edges({ key: "edge", x, y, unit: { x: unit, y: unit }, Br: state.Br, Bc: state.Bc, named: true }),
  ];
}

const KEY = [
  { name: "K", words: "in fast memory" },
  { name: "K", faint: 0.3, words: "in slow memory" },
  { dash: true, words: "empty" },
];

// The place of a tile of a tensor, or of the scores.
function placing(trace, side) {
  const unit = side / trace.N;
  const [left, top] = SCORES;
  return (name, span) => {
    if (name.endsWith("_ij")) {
      const [[r0, r1], [c0, c1]] = span;
      return { x: left + c0 * unit, y: top + r0 * unit, width: (c1 - c0) * unit, height: (r1 - r0) * unit };
    }
    const [start, stop] = span;
    if (name in ABOVE) return { x: left + start * unit, y: ABOVE[name], width: (stop - start) * unit, height: STRIP };
    const [x, thick] = LEFT[name] ?? [left + side + 6, STRIP];
    return { x, y: top + start * unit, width: thick, height: (stop - start) * unit };
  };
}

const spans = (N, size) =>
  Array.from({ length: Math.ceil(N / size) }, (_, at) => [at * size, Math.min((at + 1) * size, N)]);

function strips({ trace, now, done, place, side, inside, fast }) {
  const [left, top] = SCORES;
  const names = [...Object.keys(LEFT), "dQ", ...Object.keys(ABOVE)];
  const words = { loads: (count) => `loaded ${times(count)}`, stores: (count) => `stored ${times(count)}` };
  const tiles = names.flatMap((name) =>
    spans(trace.N, name in ABOVE ? trace.Bc : trace.Br).map((span) => {
      const mine = done.filter((one) => one.name === name && one.span[0] === span[0]);
      const [loads, stores] = ["load", "store"].map((kind) => mine.filter((one) => one.kind === kind).length);
      const held = now.held.some(([one, [start]]) => one === name && start === span[0]);
      const there = !RESULTS.includes(name) || stores > 0;
      const tip = {
        title: `${name}, rows ${span[0]} to ${span[1] - 1}`,
        lines: [
          [loads && words.loads(loads), stores && words.stores(stores)].filter(Boolean).join(", ") || "not moved yet",
          held ? "in fast memory now" : there ? "in slow memory" : "not yet written",
        ],
        code: mine.at(-1)?.code,
      };
      const from = stores ? (inside.find((one) => one.name === name) ?? fast) : undefined;
      const box = { key: `${name} ${span[0]} ${stores}`, from, ...place(name, span), tip };
      if (!held && !there) return slot({ ...box, dash: true });
      const count = RESULTS.includes(name) ? stores : loads;
      return tile({
        ...box,
        name: COLORS[name] ?? name,
        letter: count ? `${count}×` : undefined,
        faint: held ? undefined : 0.3,
        current: held,
      });
    }),
  );
  const bottom = top + side + 12;
  const under = (name, x, line = 0) => label(x, bottom + 15 * line, name, { anchor: "middle", weight: 650 });
  return [
    tiles,
    ["Q", "dO", "O"].map((name) => under(name, LEFT[name][0] + STRIP / 2)),
    under("lse", LEFT.lse[0] + THIN / 2),
    under("delta", LEFT.delta[0] - 4, 1),
    under("dQ", left + side + 6 + STRIP / 2),
    Object.entries(ABOVE).map(([name, y]) => label(left - 7, y + STRIP / 2, name, { anchor: "end", weight: 650 })),
    label(left, bottom, "↓ queries", { fill: "var(--grey)", size: 12 }),
    label(left + side, bottom, "keys →", { anchor: "end", fill: "var(--grey)", size: 12 }),
  ];
}

// The tiles of P: only one exists at a time, in fast memory.
function cells({ trace, now, done, place }) {
  const rebuilt = (steps, span) => steps.filter((one) => one.kind === "rebuild" && String(one.span) === String(span));
  return spans(trace.N, trace.Br).flatMap((rows) =>
    spans(trace.N, trace.Bc).map((cols) => {
      const span = [rows, cols];
      const mine = rebuilt(done, span);
      const here = now.kind === "rebuild" && String(now.span) === String(span);
      const title = `P of queries ${rows[0]} to ${rows[1] - 1}, keys ${cols[0]} to ${cols[1] - 1}`;
      const never = rebuilt(trace.steps, span).length === 0;
      const memory = here
        ? "in fast memory, for this step only"
        : mine.length
          ? `rebuilt ${times(mine.length)}, used and forgotten`
          : never
            ? "masked: never computed"
            : "not yet rebuilt";
      const box = {
        key: `P ${rows[0]} ${cols[0]}`,
        ...place("P_ij", span),
        tip: { title, lines: [memory, "in slow memory: nothing"], code: mine.at(-1)?.code },
      };
      if (here) return tile({ ...box, name: "P", letter: "P", current: true });
      const middle = [box.x + box.width / 2, box.y + box.height / 2];
      const words = never ? "masked" : mine.length ? `${mine.length}×` : "";
      return h(
        "g",
        { key: box.key, tip: box.tip },
        h("rect", {
          x: box.x,
          y: box.y,
          width: box.width,
          height: box.height,
          fill: never ? "var(--pale)" : "var(--paper)",
          stroke: "var(--grey)",
          "stroke-dasharray": "3 3",
        }),
        fits(words, box.width, 13) &&
          label(...middle, words, { anchor: "middle", fill: never ? "var(--ink)" : "var(--grey)" }),
      );
    }),
  );
}

function status({ trace, now, last, x, y }) {
  const index = ([start], size) => start / size;
  const tileName = () => {
    if (now.clock > last) {
      const [kept, rebuilt] = trace.passes;
      const both = now.clock >= kept.parts.at(-1).stop;
      return both ? `${rebuilt.name}, ${kept.name}: done` : `${rebuilt.name}: done. ${kept.name} goes on`;
    }
    if (!now.kind) return "before the first step";
    if (now.kind === "rebuild")
      return `rebuild P(${index(now.span[0], trace.Br)}, ${index(now.span[1], trace.Bc)}), use it, forget it`;
    return `${now.kind} ${now.name}(${index(now.span, now.name in ABOVE ? trace.Bc : trace.Br)})`;
  };
  const used = now.held.reduce((sum, [, , bytes]) => sum + bytes, 0);
  const more = bursts(trace) && `more than the ${room(trace.block)} of a block on this card`;
  return [
    label(x, y + 8, tileName(), { weight: 650, size: 15 }),
    label(
      x,
      y + 46,
      `${trace.registers ? "fast memory" : "loaded tiles"}: ${room(used)}, at most ${room(trace.peak)}`,
      { weight: 600 },
    ),
    lines(
      x,
      y + 62 + FAST + 22,
      [
        `tiles of P rebuilt: ${now.rebuilt}${trace.registers ? "; in slow memory: 0" : ""}`,
        trace.registers ? more : "P and what grows are in registers, not counted",
      ].filter(Boolean),
      { gap: 1.5 },
    ),
  ];
}

// Whether the tiles need more fast memory than a block of threads gets.
const bursts = ({ registers, peak, block }) => registers && peak > block;

// The end of the fast memory of a block.
function limit({ trace, x, y, width }) {
  const end = x + (trace.block / trace.peak) * width;
  const look = { stroke: "var(--wrong)", "stroke-width": 2.5, "stroke-dasharray": "5 3" };
  return [
    h("path", { key: "limit", d: `M${end} ${y - 5}V${y + FAST + 5}`, ...look }),
    label(end, y + FAST + 12, room(trace.block), { key: "block", size: 12, anchor: "middle", fill: "var(--wrong)" }),
  ];
}

// The tiles in fast memory side by side, as wide as their bytes.
function packed(trace, now, fast) {
  let left = fast.x;
  return now.held
    .filter(([, , bytes]) => bytes > 0)
    .map(([name, , bytes]) => {
      const x = left;
      const width = (bytes / trace.peak) * fast.width;
      left += width;
      return { name, x, y: fast.y, width, bytes };
    });
}

// The N x N matrices of the other pass, which go through slow memory.
function kept({ trace, now, x, y, side, words }) {
  const { name, squares } = trace.passes[0];
  if (squares.length === 0) return [];
  const title = `${name}, after as many bytes: N × N, in slow memory`;
  return [
    label(x, y, fits(title, words, 13) ? title : `${name}, meanwhile, in slow memory`, { weight: 600 }),
    squares.map((square, at) => {
      const part =
        square.stop > square.start
          ? Math.min(Math.max((now.clock - square.start) / (square.stop - square.start), 0), 1)
          : 1;
      const box = { x: x + at * (side + 18), y: y + 18, width: side };
      const tip = {
        title: square.name,
        lines: [`${amount(part * square.bytes)} of ${amount(square.bytes)} in slow memory`, square.words],
      };
      return h(
        "g",
        { key: square.name, tip },
        h("rect", { ...box, height: side, fill: "var(--paper)", stroke: "var(--grey)", "stroke-dasharray": "3 3" }),
        h("rect", { key: "there", ...box, height: part * side, fill: "var(--slow)", class: "grow" }),
        h("rect", { key: "hatch", ...box, height: part * side, fill: "url(#stored)", class: "grow" }),
        label(box.x + side / 2, y + 32 + side, square.name, { anchor: "middle", weight: 650 }),
      );
    }),
  ];
}

// Both passes: the time of their bytes and of their products, at a card's peaks, in one scale.
function timelines({ trace, now, y, width }) {
  const left = 52;
  const { bytes, flops } = trace.rates;
  const longest = Math.max(
    ...trace.passes.flatMap(({ parts }) => [parts.at(-1).stop / bytes, sum(parts, "flops") / flops]),
  );
  const space = width >= 600 ? 190 : 82;
  const scale = (width - left - space) / longest;
  const drawn = trace.passes.map((pass, at) =>
    lanes({ trace, pass, now: at ? now : null, clock: now.clock, x: left, y: y + 26 + at * 78, scale, space }),
  );
  const floor = y + 26 + 2 * 78;
  const unit = 10 ** Math.floor(Math.log10(longest)) * (longest / 10 ** Math.floor(Math.log10(longest)) > 4 ? 1 : 0.5);
  const ticks = Array.from({ length: Math.floor(longest / unit) + 1 }, (_, at) => at * unit);
  const title = `time at the peaks of one ${trace.card}, ${trace.dtype}`;
  return [
    label(0, y, fits(title, width, 15) ? title : `at an ${trace.card}'s peaks`, { weight: 650, size: 15 }),
    drawn,
    rule(left, left + longest * scale, floor, { color: "var(--grey)", key: "axis" }),
    ticks.map((tick) => [
      h("line", {
        key: `tick ${tick}`,
        x1: left + tick * scale,
        x2: left + tick * scale,
        y1: floor,
        y2: floor + 5,
        stroke: "var(--grey)",
      }),
      label(left + tick * scale, floor + 15, digits(1e6 * tick, 3), {
        anchor: "middle",
        size: 12,
        fill: "var(--grey)",
      }),
    ]),
    label(left + longest * scale + 16, floor + 15, "µs", { size: 12, fill: "var(--grey)" }),
  ];
}

const sum = (parts, field) => parts.reduce((total, part) => total + part[field], 0);
const work = (flops) => (flops >= 1e9 ? `${digits(flops / 1e9, 3)} GFLOP` : `${digits(flops / 1e6, 3)} MFLOP`);

// now: the step, for the pass that is shown step by step. The other pass is shown up to the clock, in bytes.
function lanes({ trace, pass, now, clock, x, y, scale, space }) {
  const { bytes, flops } = trace.rates;
  const { name, parts } = pass;
  const whole = parts.at(-1).stop;
  const moved = Math.min(clock, whole);
  const done = (part) => Math.min(Math.max((clock - part.start) / (part.stop - part.start), 0), 1);
  const far = (field) => now?.[field] ?? parts.reduce((total, part) => total + done(part) * part[field], 0);
  const [computed, rebuilt] = [far("flops"), far("again")];
  const [all, again] = [sum(parts, "flops"), sum(parts, "again")];
  const ended = moved >= whole && computed >= all ? ": done" : "";
  const wide = space > 100;
  return h(
    "g",
    { key: `pass ${name}` },
    label(0, y, `${name}${ended}${again ? ` (purple: S again, ${micro(again / flops)})` : ""}`, { weight: 600 }),
    moving({ name, parts, whole, moved, bytes, flops, x, y: y + 12, scale, wide }),
    computing({ name, all, again, computed, rebuilt, flops, x, y: y + LANE + 15, scale, wide }),
  );
}

// The bytes of a pass, part by part.
function moving({ name, parts, whole, moved, bytes, flops, x, y, scale, wide }) {
  const long = (count) => (count / bytes) * scale;
  const place = (one) => ({ x: x + (one.start / bytes) * scale, y, width: long(one.stop - one.start), height: LANE });
  const part = (one) => ({
    title: `${name}: ${one.name}`,
    lines: [
      `${amount(one.stop - one.start)} moved: ${micro((one.stop - one.start) / bytes)}`,
      `${work(one.flops)}: ${micro(one.flops / flops)}`,
    ],
  });
  const tip = {
    title: `${name}: bytes`,
    lines: [
      `${amount(moved)} of ${amount(whole)} moved`,
      `${micro(moved / bytes)} of ${micro(whole / bytes)} at ${amount(bytes)}/s`,
    ],
  };
  const bar = { x, y, width: long(moved), height: LANE, fill: "var(--standard)", class: "grow" };
  return [
    label(x - 6, y + 9, "bytes", { anchor: "end", size: 12, fill: "var(--grey)" }),
    parts.map((one, at) => slot({ key: `whole ${at}`, ...place(one), tip: part(one) })),
    h("rect", { key: "moved", ...bar, tip }),
    label(x + long(whole) + 7, y + 9, wide ? `${amount(whole)}: ${micro(whole / bytes)}` : amount(whole)),
  ];
}

// The products of a pass; in purple those that compute S again.
function computing({ name, all, again, computed, rebuilt, flops, x, y, scale, wide }) {
  const long = (count) => (count / flops) * scale;
  const products = {
    title: `${name}: products`,
    lines: [
      `${work(computed)} of ${work(all)}`,
      `${micro(computed / flops)} of ${micro(all / flops)} at ${digits(flops / 1e12, 3)} TFLOP/s`,
    ],
  };
  const repeated = {
    title: "S again, to rebuild P",
    lines: [`${work(rebuilt)}: ${micro(rebuilt / flops)}`, `one product of ${digits(all / again, 3)}`],
  };
  const first = long(computed - rebuilt);
  const [bar, look] = [
    { y, height: LANE },
    { fill: "var(--paper)", stroke: "var(--grey)" },
  ];
  return [
    label(x - 6, y + LANE / 2, "FLOPs", { anchor: "end", size: 12, fill: "var(--grey)" }),
    h("rect", { key: "work", x, width: long(all), ...bar, ...look }),
    h("rect", { key: "computed", x, width: first, ...bar, fill: "var(--flash)", class: "grow", tip: products }),
    again > 0 &&
      h("rect", {
        key: "again",
        x: x + first,
        width: long(rebuilt),
        ...bar,
        fill: "var(--P)",
        class: "grow",
        tip: repeated,
      }),
    label(x + long(all) + 7, y + 9, wide ? `${work(all)}: ${micro(all / flops)}` : work(all)),
  ];
}

const micro = (seconds) => `${digits(1e6 * seconds, 3)} µs`;
