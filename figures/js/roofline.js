// The roof of a card on logarithmic axes (it spans five decades), the parts of attention under it, and the fused kernel
// that slides along it.

import { h } from "./svg.js";
import { amount, digits, grouped } from "./words.js";
import { nearest } from "./state.js";
import { WIDE, at, label } from "./marks.js";

const INTENSITY = [0.4, 3e4]; // FLOPs per byte
const RATE = [0.03e12, 3e16]; // FLOPs per second
const LIST = 346; // width of the list
const RADIUS = 11;
const AWAY = 26; // distance of a mark from the roof

export function draw({ trace, step, width }) {
  const wide = width >= WIDE;
  const chart = { left: 52, top: 40, width: (wide ? width - LIST - 24 : width) - 60, height: wide ? 330 : 250 };
  const list = wide ? { x: width - LIST, y: 40 } : { x: 0, y: chart.top + chart.height + 76 };
  const log = (value, [low, high], length) => (Math.log(value / low) / Math.log(high / low)) * length;
  const x = (intensity) => chart.left + log(intensity, INTENSITY, chart.width);
  const y = (rate) => chart.top + chart.height - log(rate, RATE, chart.height);
  const marks = [
    ...trace.parts.map((one, number) => ({ ...one, number: number + 1 })),
    { ...trace.fused[Math.max(step - 1, 0)], number: 4, waits: step === 0 },
    { ...trace.fused.at(-1), number: 5, name: "fused, all read once" },
  ];
  return {
    height: Math.max(chart.top + chart.height + 56, list.y + marks.length * 46 + 8),
    nodes: [
      h("g", { key: "axes", class: "compared" }, axes({ chart, x, y })),
      trace.peak
        ? h("g", { key: "roof" }, roof({ trace, chart, x, y }))
        : label(chart.left + chart.width / 2, chart.top + chart.height / 2, `${trace.dtype}: no rate`, {
            anchor: "middle",
            weight: 650,
            fill: "var(--wrong)",
            key: "missing",
          }),
      trace.peak ? h("g", { key: "marks" }, placed({ trace, marks, step, x, y })) : [],
      h("g", { key: "list", class: "compared" }, listed({ trace, marks, ...list })),
    ],
  };
}

function axes({ chart, x, y }) {
  const bottom = chart.top + chart.height;
  const across = [1, 10, 100, 1000, 10000].map((value) => [
    h("path", { d: `M${x(value)} ${bottom}v5`, stroke: "var(--grey)" }),
    label(x(value), bottom + 15, grouped(value), { anchor: "middle", size: 12 }),
  ]);
  const up = [0.1, 1, 10, 100, 1000, 10000].map((value) => [
    h("path", { d: `M${chart.left} ${y(value * 1e12)}h-5`, stroke: "var(--grey)" }),
    label(chart.left - 8, y(value * 1e12), grouped(value), { anchor: "end", size: 12 }),
  ]);
  return [
    label(0, 10, "TFLOP/s within reach", { weight: 650 }),
    h("path", {
      d: `M${chart.left} ${chart.top}V${bottom}H${chart.left + chart.width}`,
      fill: "none",
      stroke: "var(--grey)",
    }),
    across,
    up,
    label(
      chart.left + chart.width,
      bottom + 36,
      chart.width > 400
        ? "FLOPs for each byte from DRAM (both axes: powers of ten)"
        : "FLOPs per byte (axes: powers of ten)",
      { anchor: "end", fill: "var(--grey)", size: 12 },
    ),
  ];
}

function roof({ trace, chart, x, y }) {
  const [low, high] = INTENSITY;
  const ridge = trace.ridge;
  const bottom = chart.top + chart.height;
  const tip = {
    title: `the ridge: ${Math.round(ridge)} FLOPs per byte`,
    lines: [
      `peak ${digits(trace.peak / 1e12)} TFLOP/s`,
      `DRAM ${amount(trace.slope)}/s`,
      "left of it bytes decide, right of it arithmetic",
    ],
  };
  return [
    h("rect", {
      key: "waiting",
      x: chart.left,
      y: chart.top,
      width: x(ridge) - chart.left,
      height: chart.height,
      fill: "var(--slow)",
      "fill-opacity": 0.22,
      class: "grow",
    }),
    label(chart.left + 8, chart.top + 12, "waits for bytes", { fill: "var(--grey)" }),
    label(
      chart.left + chart.width,
      chart.top + 12,
      x(ridge) < chart.left + chart.width - 160 ? "waits for arithmetic" : "arithmetic",
      { anchor: "end", fill: "var(--grey)" },
    ),
    h("path", {
      d: `M${x(low)} ${y(low * trace.slope)}L${x(ridge)} ${y(trace.peak)}H${x(high)}`,
      fill: "none",
      stroke: "var(--ink)",
      "stroke-width": 2.5,
    }),
    h(
      "g",
      { key: "ridge", tip },
      h("rect", { x: x(ridge) - 8, y: chart.top + 26, width: 16, height: chart.height - 26, fill: "transparent" }),
      h("path", { d: `M${x(ridge)} ${bottom}V${y(trace.peak)}`, stroke: "var(--grey)", "stroke-dasharray": "4 4" }),
    ),
    label(x(ridge) + 8, bottom - 14, `ridge: ${Math.round(ridge)}`, { weight: 600 }),
  ];
}

// Marks of standard attention are below the roof, fused ones above it; a stalk leads to the point on the roof.
function placed({ trace, marks, step, x, y }) {
  const places = trace.fused.map((one) => x(one.intensity));
  const drag = {
    field: "step",
    name: "queries of a tile of the fused kernel",
    to: (point) => ({ step: 1 + places.indexOf(nearest(places, point.x)) }),
  };
  const taken = [];
  const drawn = marks.map((one) => {
    if (one.waits) return null; // not fused yet
    const fused = one.number > 3;
    const [px, py] = [x(one.intensity), y(one.reach)];
    let off = fused ? -AWAY : AWAY;
    while (taken.some(([ox, oy]) => Math.hypot(ox - px, oy - (py + off)) < 2 * RADIUS + 2))
      off += fused ? -RADIUS : RADIUS;
    taken.push([px, py + off]);
    const color = fused ? "flash" : "standard";
    const ghost = one.number === 5;
    return h(
      "g",
      {
        key: `mark ${one.number}`,
        class: "mark",
        style: at(px, py),
        from: one.number === 4 ? { style: at(x(trace.parts[2].intensity), y(trace.parts[2].reach)) } : undefined,
        tip: tipOf(one, trace),
        drag: one.number === 4 ? drag : undefined,
      },
      one.number === 4 && h("rect", { x: -14, y: off - 14, width: 28, height: 28, fill: "transparent" }),
      h("path", { d: `M0 0V${off}`, stroke: `var(--${color})`, "stroke-width": 1.5 }),
      h("circle", { r: 3.5, fill: "var(--ink)" }),
      h("circle", {
        cy: off,
        r: RADIUS,
        fill: ghost ? "var(--paper)" : `var(--${color})`,
        stroke: `var(--${color})`,
        "stroke-width": 2,
      }),
      label(0, off, String(one.number), {
        anchor: "middle",
        weight: 700,
        fill: ghost ? "var(--ink)" : `var(--on-${color})`,
      }),
    );
  });
  return [trailOf({ trace, step, x, y }), drawn.reverse()]; // a lower mark covers the stalks of higher ones
}

// The trail of the fused kernel: a dot for each size of its tiles. Earlier dots have their number of queries, if there
// is room beside the next dot; the list has the last one.
function trailOf({ trace, step, x, y }) {
  let [right, top] = [Infinity, -Infinity];
  const longer = 48; // pixels of " queries", which only the first label has
  return trace.fused.slice(0, step).map((_, back) => {
    const at = step - 1 - back;
    const { Br, intensity, reach } = trace.fused[at];
    const [cx, cy] = [x(intensity), y(reach)];
    const room = back > 0 && (cy - top >= 13 || right - cx >= 30);
    const first = room && right === Infinity;
    if (room) [right, top] = [cx - (first ? longer : 0), cy];
    return [
      h("circle", { key: `trail ${Br}`, cx, cy, r: 3.5, fill: "var(--flash)" }),
      room && label(cx - 8, cy - 8, first ? `${Br} queries` : Br, { key: `queries ${Br}`, size: 12, anchor: "end" }),
    ];
  });
}

const reached = (one) => `, ${digits(one.reach / 1e12, 3)} TFLOP/s, ${(100 * one.share).toFixed(1)}% of the peak`;

function tipOf(one, trace) {
  const side = one.intensity < trace.ridge ? "bytes: left of the ridge" : "arithmetic: right of the ridge";
  return {
    title: one.name,
    lines: [
      `${digits(one.intensity, 3)} FLOPs per byte, ${amount(one.nbytes)} moved`,
      `at most ${digits(one.reach / 1e12, 3)} TFLOP/s`,
      `waits for ${side}`,
      ...(one.number === 4 ? ["bytes that the program asks for, before any cache", "drag it along the roof"] : []),
    ],
  };
}

function listed({ trace, marks, x, y }) {
  return marks.map((one, row) => {
    const top = y + 14 + 46 * row;
    const color = one.number > 3 ? "flash" : "standard";
    const words = one.waits
      ? "press ▶: all three in one kernel"
      : `${digits(one.intensity, 3)} FLOP/B${trace.peak ? reached(one) : ""}`;
    return h(
      "g",
      {
        key: `row ${one.number}`,
        tip: { title: one.waits ? "not fused yet" : one.name, lines: [`moves ${amount(one.nbytes)} for one head`] },
      },
      h("rect", { x, y: top - 14, width: 316, height: 42, fill: "transparent" }),
      h("circle", {
        cx: x + RADIUS + 1,
        cy: top,
        r: RADIUS,
        fill: one.number === 5 || one.waits ? "var(--paper)" : `var(--${color})`,
        stroke: `var(--${color})`,
        "stroke-width": 2,
      }),
      label(x + RADIUS + 1, top, String(one.number), {
        anchor: "middle",
        weight: 700,
        fill: one.number === 5 || one.waits ? "var(--ink)" : `var(--on-${color})`,
      }),
      label(x + 32, top - 3, one.waits ? "fused" : one.name, { weight: 650 }),
      label(x + 32, top + 17, words, { size: 12.5 }),
    );
  });
}
