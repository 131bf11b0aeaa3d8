// The square of scores with the tiles of a mask: skipped, cut, whole; beside it what is visible, computed and moved.

import { h } from "./svg.js";
import { amount, grouped, times } from "./words.js";
import { WIDE, bars, boxes, knob, label, legend } from "./marks.js";

const TOP = 42; // room for the titles
// The opacity of scores that were computed and are hidden, and of tiles that the loop has not visited.
const [DONE, TO_DO] = [0.45, 0.2];
// The colour, on the ground of the page, of scores that were computed and are hidden.
const HIDDEN = `color-mix(in srgb, var(--slow) ${100 * DONE}%, var(--paper))`;
const PANEL = 330; // least width of the bars beside the square

export function draw({ trace, state, step, width }) {
  const wide = width >= WIDE;
  const side = Math.min(wide ? width - PANEL - 60 : width - 26, 460);
  const unit = side / trace.Nk;
  const left = 24;
  const bottom = TOP + trace.Nq * unit;
  const [x, y] = wide ? [left + side + 46, TOP] : [0, bottom + 92];
  const keys = [
    { name: "P", words: "whole tile: no mask" },
    { name: "S", words: "cut tile: masked" },
    { name: "slow", faint: DONE, stored: true, words: "computed, then hidden" },
  ];
  const below = bottom + 42;
  const stacked = !wide || side < 440;
  const meaning = stacked ? keys.map((entry, row) => legend(0, below + 20 * row, [entry])) : legend(left, below, keys);
  const counted = counts({ trace, step, x, y: stacked && !wide ? y + 26 : y, width: wide ? width - x : width });
  return {
    height: Math.max(stacked ? below + 60 : below + 20, counted.bottom),
    nodes: [
      h("g", { key: "square" }, square({ trace, step, left, unit, side })),
      sizeOf({ trace, state, left, unit }),
      meaning,
      counted.nodes,
    ],
  };
}

function square({ trace, step, left, unit, side }) {
  const { B, Nq, Nk, tiles } = trace;
  const now = tiles[step - 1];
  const box = ({ i, j }) => ({
    x: left + j * B * unit,
    y: TOP + i * B * unit,
    width: (Math.min((j + 1) * B, Nk) - j * B) * unit,
    height: (Math.min((i + 1) * B, Nq) - i * B) * unit,
  });
  const here = now && box(now);
  const frame = { fill: "none", stroke: "var(--ink)", "stroke-width": 3 };
  const visits = now ? `tile ${step} of ${tiles.length}` : `${times(tiles.length, "tile")} to visit, pale`;
  const [K, Q] = [
    { fill: "var(--K)", height: 8, y: TOP - 14 },
    { fill: "var(--Q)", width: 8, x: left - 14 },
  ];
  return [
    label(left, 10, `${times(Nk, "key")}, ${Nk / B} tiles`, { weight: 600 }),
    label(left + side, 10, visits, { anchor: "end", fill: "var(--grey)" }),
    h("rect", { key: "K", x: left, width: side, ...K, "fill-opacity": 0.25 }),
    now && h("rect", { key: "K_j", x: here.x, width: here.width, ...K, class: "grow" }),
    h("rect", { key: "Q", y: TOP, height: Nq * unit, ...Q, "fill-opacity": 0.25 }),
    now && h("rect", { key: "Q_i", y: here.y, height: here.height, ...Q, class: "grow" }),
    tilesOf({ trace, step, left, unit, box }),
    now && h("rect", { key: "current", ...rounded(here), ...frame }),
    label(left, TOP + Nq * unit + 14, "↓ queries", { size: 12, fill: "var(--grey)" }),
    label(left + side, TOP + Nq * unit + 14, "keys →", { anchor: "end", size: 12, fill: "var(--grey)" }),
  ];
}

// All tiles: their grounds, on these the visible scores, and the edges above both.
function tilesOf({ trace, step, left, unit, box }) {
  const { B, Nq, Nk, tiles } = trace;
  const visited = new Map(tiles.map((tile, at) => [`${tile.i} ${tile.j}`, { ...tile, at }]));
  const across = Math.ceil(Nk / B);
  const places = Array.from({ length: Math.ceil(Nq / B) * across }, (_, at) => {
    const place = { i: Math.floor(at / across), j: at % across };
    const name = `${place.i} ${place.j}`;
    return { ...place, name, tile: visited.get(name), look: rounded(box(place)) };
  });
  const grounds = places.map(({ name, tile, look }) => {
    const done = tile && tile.at < step;
    const fill = tile ? "var(--slow)" : "var(--paper)";
    return h("rect", { key: `ground ${name}`, ...look, fill, "fill-opacity": tile ? (done ? DONE : TO_DO) : 1 });
  });
  const hidden = boxes(
    "hidden",
    places.filter(({ tile }) => tile?.at < step && !tile.whole).map(({ look }) => look),
    { fill: "url(#stored)" },
  );
  const visible = places
    .filter(({ tile }) => tile)
    .map((place) => {
      const { name, tile, look } = place;
      const [key, opacity] = [`seen ${name}`, tile.at < step ? 1 : TO_DO];
      if (tile.whole) return h("rect", { key, ...look, fill: "var(--P)", "fill-opacity": opacity });
      return h("path", { key, d: strips(trace, place, left, unit), fill: "var(--S)", "fill-opacity": opacity });
    });
  const borders = places.map((place) => {
    const { name, tile, look } = place;
    const stroke = "var(--pale)";
    return h("rect", { key: `tile ${name}`, ...look, fill: "transparent", stroke, tip: tip(trace, place, tile) });
  });
  return [grounds, hidden, visible, borders];
}

// The edge that the mask's size moves: the lower edge of a window; for other masks the first key after the size.
function sizeOf({ trace, state, left, unit }) {
  const { Nq, Nk } = trace;
  const bottom = TOP + Nq * unit;
  const slides = state.mask.includes("window");
  const x = left + (slides ? Nk - state.size : state.size) * unit;
  const down = Math.min(Nq, Nk - state.size) * unit;
  const wanted = (point) => (slides ? Nk - (point.x - left) / unit : (point.x - left) / unit);
  return [
    h("path", {
      key: "edge",
      d: slides ? `M${x} ${bottom}l${-down} ${-down}` : `M${x} ${TOP}V${bottom}`,
      stroke: "var(--ink)",
      "stroke-dasharray": "4 3",
    }),
    knob({
      key: "size",
      x,
      y: slides ? bottom : TOP,
      tip: { title: `its size = ${state.size}`, lines: ["pull the edge of the mask"] },
      drag: {
        field: "size",
        name: "edge of the mask, its size",
        grows: slides ? [-1, 1] : [1, -1],
        to: (point) => ({ size: wanted(point) }),
      },
    }),
  ];
}

const rounded = (box) =>
  Object.fromEntries(Object.entries(box).map(([name, value]) => [name, Math.round(value * 100) / 100]));

// The visible scores of one tile as a path of one strip per query.
function strips({ spans, B, Nq, Nk }, { i, j }, left, unit) {
  const [first, end] = [j * B, Math.min((j + 1) * B, Nk)];
  const drawn = [];
  for (let row = i * B; row < Math.min((i + 1) * B, Nq); row++) {
    for (const [start, stop] of spans[row]) {
      const [from, to] = [Math.max(start, first), Math.min(stop, end)];
      if (from < to)
        drawn.push(
          `M${at(left + from * unit)} ${at(TOP + row * unit)}h${at((to - from) * unit)}v${at(unit)}` +
            `h${at((from - to) * unit)}z`,
        );
    }
  }
  return drawn.join("");
}

const at = (value) => Math.round(value * 100) / 100;

function tip({ B, Nq, Nk }, { i, j }, tile) {
  const last = (at, N) => Math.min((at + 1) * B, N) - 1;
  const title = `queries ${i * B} to ${last(i, Nq)}, keys ${j * B} to ${last(j, Nk)}`;
  if (!tile) return { title, lines: ["skipped: nobody sees anything here, nothing is loaded"] };
  const area = (Math.min((i + 1) * B, Nq) - i * B) * (Math.min((j + 1) * B, Nk) - j * B);
  const kind = tile.whole ? "whole: the mask is not asked" : `cut: ${times(tile.pairs, "pair")} of ${area} visible`;
  return { title, lines: [kind, `tile ${tile.at + 1} of the loop`] };
}

function counts({ trace, step, x, y, width }) {
  const { tiles, Nq, Nk, B } = trace;
  const done = tiles.slice(0, step);
  const pairs = done.reduce((sum, tile) => sum + tile.pairs, 0);
  const whole = done.reduce((sum, tile) => sum + (tile.whole ? tile.pairs : 0), 0);
  const visible = [
    { value: whole, color: "var(--P)" },
    { value: pairs - whole, color: "var(--S)" },
  ];
  const all = Nq * Nk;
  const space = 74;
  const scale = (width - space - 96) / all;
  const number = (value) => grouped(Math.round(value));
  const scores = [
    {
      name: "all",
      parts: [{ value: all, color: "var(--pale)" }],
      words: number(all),
      tip: { title: "all pairs", lines: [`${Nq} queries × ${Nk} keys`] },
    },
    {
      name: "computed",
      parts: [...visible, { value: done.length * B * B - pairs, color: HIDDEN, stored: true }],
      words: number(done.length * B * B),
      tip: { title: "computed so far", lines: [`${times(done.length, "tile")} of ${B} × ${B} scores`] },
    },
    {
      name: "visible",
      parts: visible,
      words: number(pairs),
      tip: { title: "visible so far", lines: [`${number(pairs)} of ${number(trace.pairs)} pairs`] },
    },
  ];
  const share = done.length ? pairs / (done.length * B * B) : 0;
  const end = tiles.length ? trace.pairs / trace.computed : 0;
  const shares = `useful share: ${share.toFixed(3)} so far, ${end.toFixed(3)} in all`;
  return {
    nodes: [
      label(x, y + 6, "scores", { weight: 650 }),
      bars({ x, y: y + 22, rows: scores, scale, row: 24, key: "scores", space }),
      label(x, y + 108, shares, { fill: "var(--grey)" }),
      label(x, y + 148, "bytes of Q, K, V, O and lse", { weight: 650 }),
      bars({ x, y: y + 164, ...bytesOf(trace, step, width - space - 96), row: 24, key: "bytes", space }),
    ],
    bottom: y + 220,
  };
}

// The bars of the bytes that move without a mask, and up to this step with it.
function bytesOf(trace, step, width) {
  const { tiles, full } = trace;
  const moved = step === 0 ? 0 : step < tiles.length ? tiles[step - 1].moved : trace.moved;
  const rows = [
    {
      name: "no mask",
      parts: [{ value: full, color: "var(--pale)" }],
      words: amount(full),
      tip: { title: "without a mask", lines: ["all tiles are visited"] },
    },
    {
      name: "moved",
      parts: [{ value: moved, color: "var(--fast)" }],
      words: amount(moved),
      tip: { title: "moved so far", lines: [`${amount(moved)} of ${amount(trace.moved)}`] },
    },
  ];
  return { rows, scale: width / Math.max(full, trace.moved) };
}
