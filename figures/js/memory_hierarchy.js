// Memories as squares on one ground, seen through a window that zooms; beside them their bandwidths as streams.
// A memory that goes on beyond the window has a torn edge there.

import { h } from "./svg.js";
import { digits, fits, grouped, room } from "./words.js";
import { WIDE, at, label, rule } from "./marks.js";

const BETWEEN = 10; // between squares
const MEASURE = 20; // the longest edge of the measure
const TORN = [8, 3, 6, 2, 7, 4]; // how far each tooth of a torn edge stands out
const TOOTH = 7; // from one tooth to the next
const BEYOND = Math.max(...TORN);
const DRAM = 3; // the place of the DRAM among the levels
const TAP = 82; // the least width of a stream with its words
const LOOK = {
  block: ["var(--fast)", 1],
  smem: ["var(--fast)", 0.8],
  regs: ["var(--fast)", 0.6],
  L2: ["var(--fast)", 0.4],
  CPU: ["var(--standard)", 0.7],
};
const FLOW =
  "@keyframes flow { to { stroke-dashoffset: -20 } } " +
  "@media (prefers-reduced-motion: no-preference) { .flow { animation: flow 0.7s linear infinite } }";
const look = (short) => LOOK[short] ?? ["var(--slow)", 1];

export function draw({ trace, step, width }) {
  const wide = width >= WIDE;
  const high = wide ? 264 : 200;
  const things = thingsOf(trace);
  const dram = trace.levels[DRAM].name;
  const beside = Math.max(0.4 * width, TAP * (trace.levels.length - 1));
  const view = { x: 1, y: 56, width: (wide ? width - beside - 30 : width - BEYOND) - 2, height: high };
  const ground = view.y + high;
  const taps = wide
    ? { x: width - beside, y: 0, width: beside, height: ground }
    : { x: 0, y: ground + 56, width, height: 190 };
  const table = { x: 0, y: wide ? ground + 56 : taps.y + taps.height + 60, width };
  return {
    height: table.y + 24 * (things.length + 1) + 6,
    nodes: [
      h("style", { key: "flow" }, FLOW),
      h("g", { key: "window", class: "compared" }, windowOf({ trace, things, step, view })),
      h("g", { key: "taps", class: "compared" }, tapsOf({ trace, dram, ...taps })),
      h("g", { key: "table" }, tableOf({ trace, things, dram, ...table })),
    ],
  };
}

// The things that have an area: one block's shared memory, then the levels.
function thingsOf(trace) {
  const [regs, smem, ...others] = trace.levels;
  const whose = trace.sms === 1 ? "one SM" : `all ${trace.sms} SMs`;
  const block = { short: "block", name: "one block, at most", ...trace.block };
  return [block, { ...smem, whose }, { ...regs, whose }, ...others];
}

// The size of a memory in binary units, as NVIDIA uses KB, MB and GB for memory.
const holds = (one) => (one.short === "CPU" ? `over ${digits(one.nbytes / 1e12, 3)} TB` : room(one.nbytes, 4));
const zoomOf = (trace, nbytes) =>
  Math.max(
    0,
    trace.windows.findLastIndex((bytes) => 0.95 * bytes >= nbytes),
  );

function windowOf({ trace, things, step, view }) {
  const bytes = trace.windows[step];
  const ground = view.y + view.height;
  const title = fits("how much each holds: areas to scale", view.width - 120, 15)
    ? "how much each holds: areas to scale"
    : "how much each holds";
  return [
    label(0, 10, title, { weight: 650, size: 15 }),
    measureOf({ bytes, view }),
    h("rect", {
      key: "view",
      ...view,
      fill: "transparent",
      stroke: "var(--grey)",
      style: SCROLLS,
      drag: { ...ZOOM, name: "zoom of the window", to: pullOf(trace, view, () => view.x) },
    }),
    rule(view.x, view.x + view.width, ground, { key: "ground" }),
    h("clipPath", { key: "torn", id: "torn" }, h("path", { d: tornOf(view) })),
    h("g", { key: "squares", "clip-path": "url(#torn)" }, squaresOf({ trace, things, bytes, view })),
    label(view.x, ground + 36, "zoom: pull a square, Ctrl + wheel, or arrow keys", { size: 12, fill: "var(--grey)" }),
  ];
}

const ZOOM = { field: "zoom", zooms: true };
const SCROLLS = "touch-action: pan-y"; // a finger that moves up or down scrolls the page

// A square of a round number of bytes, as the scale of a map.
function measureOf({ bytes, view }) {
  const measure = 2 ** Math.floor(Math.log2(bytes * (MEASURE / view.height) ** 2));
  const edge = view.height * Math.sqrt(measure / bytes);
  const right = view.x + view.width;
  return [
    h("rect", {
      key: "measure",
      x: right - edge,
      y: 42 - edge,
      width: edge,
      height: edge,
      fill: "none",
      stroke: "var(--ink)",
      class: "grow",
      tip: { title: "the measure", lines: ["a square of this size, anywhere in the window"] },
    }),
    label(right - MEASURE - 6, 33, `this square: ${room(measure)}`, { anchor: "end", size: 12 }),
  ];
}

// The outline of the visible part: the window, and torn edges above it and to its right.
function tornOf({ x, y, width, height }) {
  const [right, ground, foot] = [x + width, y + height, y + height + 24];
  const teeth = (length, place) =>
    Array.from({ length: Math.floor(length / TOOTH) }, (_, n) => `L ${place(n * TOOTH, TORN[n % TORN.length])}`);
  const above = teeth(width, (along, out) => `${x + along} ${y - out}`);
  const beside = teeth(height, (along, out) => `${right + out} ${y + along}`);
  const corners = [`M ${x} ${foot}`, `L ${right + 4} ${y - 5}`, `L ${right} ${ground} V ${foot} Z`];
  return [corners[0], ...above, corners[1], ...beside, corners[2]].join(" ");
}

// A function from a pull to the zoom. The square grows with the pointer's distance from its lower left corner, so the
// point that was taken stays under the pointer. left: that corner, by the bytes in view.
function pullOf(trace, view, left) {
  const perDoubling = 2 / Math.log2(trace.windows[0] / trace.windows[1]); // steps that double an edge
  const away = ({ x, y }, corner) => Math.max(Math.hypot(x - corner, view.y + view.height - y), 24);
  return (point, start) => {
    const corner = left(trace.windows[start.state.zoom]);
    return { zoom: start.state.zoom + perDoubling * Math.log2(away(point, corner) / away(start.point, corner)) };
  };
}

// The memories side by side on the ground. Those whose names would be beyond the window are at its right edge, without
// a width.
function squaresOf({ trace, things, bytes, view }) {
  const end = view.x + view.width;
  const drawn = things.filter((one) => one.nbytes);
  const lefts = leftsOf(drawn, bytes, view);
  return drawn.map((one, at) => {
    const seen = lefts[at] + named(one) <= end;
    const pull = pullOf(trace, view, (inView) => leftsOf(drawn, inView, view)[at]);
    return squareOf({
      trace,
      one,
      seen,
      x: seen ? lefts[at] : end + BEYOND,
      edge: edgeOf(one, bytes, view),
      view,
      pull,
    });
  });
}

const named = ({ short }) => 8.4 * short.length; // the width of its name
const edgeOf = ({ nbytes }, bytes, view) => view.height * Math.sqrt(nbytes / bytes);

// The left edges of the squares when so many bytes are in view.
function leftsOf(drawn, bytes, view) {
  let left = view.x + 8;
  return drawn.map((one) => {
    const x = left;
    left += Math.max(edgeOf(one, bytes, view), named(one)) + BETWEEN;
    return x;
  });
}

// A memory as a square of this edge, torn off where the window ends.
function squareOf({ trace, one, seen, x, edge, view, pull }) {
  const end = view.x + view.width;
  const [width, height] = [Math.min(edge, end + BEYOND - x), Math.min(edge, view.height + BEYOND)];
  const [fill, opacity] = look(one.short);
  const hands = seen && {
    tip: {
      title: `${one.short === "block" ? "shared memory of one block, at most" : one.name}: ${holds(one)}`,
      lines: comparison({ one, dram: trace.levels[DRAM], edge, view }),
    },
    drag: { ...ZOOM, to: (point, start) => (start ? pull(point, start) : { zoom: zoomOf(trace, one.nbytes) }) },
  };
  const hit = { width: Math.max(width, named(one)), height: Math.max(height, 22) + 22 };
  const inside = { edge, view, width: Math.min(edge, end - x), high: Math.min(edge, view.height) };
  return h(
    "g",
    { key: one.short, ...hands, class: "mark", style: `${at(x, view.y + view.height)}; ${SCROLLS}` },
    seen && h("rect", { key: "hit", x: 0, y: 22 - hit.height, ...hit, fill: "transparent" }),
    h("rect", { key: "area", x: 0, y: -height, width, height, fill, "fill-opacity": opacity, class: "grow" }),
    seen && wordsIn({ one, ...inside }),
    seen && label(0, 14, one.short, { size: 12, weight: 600, key: "short" }),
  );
}

// A memory compared with the DRAM and with the window, in words.
function comparison({ one, dram, edge, view }) {
  return [
    one.part > 1 && `1/${grouped(Math.round(one.part))} of ${dram.name}`,
    one.part < 1 && `${digits(1 / one.part, 3)} × ${dram.name}`,
    edge > view.height && `its edge is ${digits(edge / view.height, 3)} times the window's`,
    edge < 1 && `${digits(edge, 2)} pixels wide here`,
  ].filter(Boolean);
}

// The name of a memory and what it holds, in its corner, as far as they fit.
function wordsIn({ one, edge, view, width, high }) {
  const rows = [
    [one.short === "block" ? "one block" : one.name, one.short].find((name) => 9.4 * name.length < width - 20),
    holds(one),
    edge > 1.05 * view.height ? `edge: ${digits(edge / view.height, 2)} heights` : "",
  ].filter((words) => words && 8.2 * words.length < width - 20);
  if (rows.length === 0 || width <= 8 * 12 || high <= 70) return null;
  const across = Math.max(...rows.map((words, row) => words.length * (row === 0 ? 9.4 : 8)));
  return h(
    "g",
    { key: "words", class: "mark", style: at(6, 8 - high) },
    h("rect", { width: across + 8, height: 20 * rows.length, fill: "var(--paper)", "fill-opacity": 0.85 }),
    rows.map((words, row) => label(4, 10 + 20 * row, words, { weight: row === 0 ? 600 : undefined })),
  );
}

function tapsOf({ trace, dram, x, y, width, height }) {
  const taps = trace.levels.slice(1);
  const most = Math.max(...taps.map((one) => one.rate ?? 0));
  const taken = (unit) => taps.reduce((sum, one) => sum + Math.max((one.rate ?? 0) * unit + 8, TAP), 0);
  let unit = width / most; // pixels per rate, as many as fit
  while (taken(unit) > Math.max(width, TAP * taps.length)) unit *= 0.98;
  let left = x;
  const drawn = taps.map((one) => {
    const start = left;
    const wide = (one.rate ?? 0) * unit;
    const slot = Math.max(wide, TAP - 8);
    left += slot + 8;
    return tapOf({ one, dram, x: start, top: y + 52, wide, slot, high: height - 84 });
  });
  const title = trace.sms === 1 ? "how fast, one SM's share" : "how fast";
  const scale = `${title}: widths to scale`;
  return [label(x, y + 10, fits(scale, width, 15) ? scale : title, { weight: 650, size: 15 }), drawn];
}

// A level's bandwidth as a stream out of a valve. slot: the width of the stream and its words.
function tapOf({ one, dram, x, top, wide, slot, high }) {
  const rate = one.rate ? rateOf(one.rate) : "not known";
  const tips = [
    one.rate ? `${rate}, ${digits(one.times, 3)} × ${dram}` : "no document gives its bandwidth",
    one.cycles ? `the first byte after ${one.cycles} cycles, ${Math.round(one.ns)} ns` : "",
    one.rate && wide < 1 ? `${digits(wide, 2)} pixels wide` : "",
  ].filter(Boolean);
  const words = [
    one.short,
    rate,
    one.rate ? `${digits(one.times, 3)} ×` : "",
    one.cycles ? `${one.cycles} cycles` : "",
  ];
  return h(
    "g",
    { key: `tap ${one.short}`, tip: { title: one.name, lines: tips } },
    h("rect", { key: "hit", x, y: top - 10, width: slot, height: high + 10, fill: "transparent" }),
    h("rect", {
      key: "valve",
      x,
      y: top - 10,
      width: Math.max(wide, 10),
      height: 10,
      rx: 2,
      fill: one.rate ? "var(--ink)" : "none",
      stroke: "var(--ink)",
    }),
    one.rate && streamOf({ one, x, top, wide, high }),
    words.map((line, row) =>
      label(x, top + high + 16 + 19 * row, line, { weight: row === 0 ? 650 : undefined, size: 12 }),
    ),
  );
}

function streamOf({ one, x, top, wide, high }) {
  const [fill, opacity] = look(one.short);
  const box = { x, y: top, width: wide, height: high };
  return [
    h("rect", { key: "stream", ...box, fill, "fill-opacity": opacity, class: "grow" }),
    wide > 3 &&
      h("line", {
        key: "flow",
        x1: x + wide / 2,
        x2: x + wide / 2,
        y1: top,
        y2: top + high,
        stroke: "var(--paper)",
        "stroke-opacity": 0.35,
        "stroke-width": wide,
        "stroke-dasharray": "4 16",
        class: "flow",
      }),
  ];
}

const rateOf = (rate) => (rate >= 1e12 ? `${digits(rate / 1e12, 4)} TB/s` : `${digits(rate / 1e9, 3)} GB/s`);

function tableOf({ trace, things, dram, x, y, width }) {
  const right = x + Math.min(width, 520);
  const head = [
    label(right - 82, y + 10, "holds", { anchor: "end", fill: "var(--grey)" }),
    label(right, y + 10, `of ${dram}`, { anchor: "end", fill: "var(--grey)" }),
  ];
  const rows = things.map((one, row) => {
    const top = y + 34 + 24 * row;
    const [fill, opacity] = look(one.short);
    const part = !one.nbytes
      ? ""
      : one.part > 1
        ? `1/${grouped(Math.round(one.part))}`
        : one.short === "CPU"
          ? `${digits(1 / one.part, 3)} ×`
          : "";
    const short =
      width > 480 ? (one.whose ? `${one.name}, ${one.whose}` : one.name) : one.name.replace(" memory +", " +");
    const press = one.nbytes && {
      tip: { title: one.name, lines: ["press to let it fill the window"] },
      drag: { field: "zoom", to: () => ({ zoom: zoomOf(trace, one.nbytes) }) },
    };
    return h(
      "g",
      { key: `row ${one.short}`, ...press },
      h("rect", { x, y: top - 12, width: right - x, height: 24, fill: "transparent" }),
      h("rect", { x, y: top - 7, width: 14, height: 14, fill, "fill-opacity": opacity }),
      label(x + 20, top, one.short, { weight: 600 }),
      label(x + 86, top, one.short === one.name ? "the card's DRAM" : short),
      label(right - 82, top, one.nbytes ? holds(one) : "differs", { anchor: "end" }),
      label(right, top, part, { anchor: "end" }),
    );
  });
  return [head, rows];
}
