// A timeline of one multiprocessor, a row for each unit: from left to right in a wide picture, else downwards.

import { h } from "./svg.js";
import { fits, grouped } from "./words.js";
import { nearest } from "./state.js";
import { SIZE, WIDE, at, boxes, label, lines, spot } from "./marks.js";

const COLORS = { Q: "Q", K: "K", V: "V", S: "S", PV: "O", O: "O", softmax: "P", rescale: "standard" };
const LEFT = 96; // room in a wide picture for the names of rows
const RIGHT = 166; // room for what each unit does now
const TOP = { wide: 62, narrow: 96 };
const DOWN = 0.062; // pixels per cycle of a narrow picture
const CLOCK = 52; // room in a narrow picture for the scale of time

export function draw({ trace, step, width }) {
  const wide = width >= WIDE;
  const now = trace.times[step];
  const state = trace.steps[step];
  const rows = laidOut(trace, wide, width);
  const last = rows.at(-1);
  const end = last.at + last.size;
  const unit = wide ? (width - LEFT - RIGHT) / trace.scale : DOWN;
  const high = wide ? end : TOP.narrow + trace.cycles * unit;
  const long = (cycles) => (wide ? LEFT : TOP.narrow) + cycles * unit;
  // A stretch of time in a part of a row, as a box.
  const place = (row, low, top, start, stop) =>
    wide
      ? { x: long(start), y: row.at + low * row.size, width: (stop - start) * unit, height: (top - low) * row.size }
      : { x: row.at + low * row.size, y: long(start), width: (top - low) * row.size, height: (stop - start) * unit };
  const named = Object.fromEntries(rows.map((row) => [row.name, row]));
  const share = (value) => `${Math.round(100 * value)}%`;
  const scene = { trace, now, named, place, long, wide, unit, end, high, width };
  const below = high + (wide ? 42 : 24);
  const noted = notesOf(trace, width);
  const narrow = ["pale: on its way, or still to come; dashed: waits", "half as wide: the unit works for both"];
  return {
    height: below + (wide ? 18 * noted.length - 4 : 66 + 20 * (trace.workers.length + 2 + trace.stages)),
    nodes: [
      label(0, 10, `cycle ${grouped(now)} of ${grouped(trace.cycles)}`, { weight: 650, size: 15 }),
      label(wide ? width : 0, wide ? 10 : 32, `tensor core busy ${share(state.busy)} so far`, {
        anchor: wide ? "end" : "start",
      }),
      boxesOf(scene),
      headsOf({ rows, state, wide, width }),
      trace.waits.map((wait, at) => waitOf(wait, at, scene)),
      timeOf(scene),
      trace.links.filter((link) => link.at === now).map((link, at) => linkOf(link, at, scene)),
      clockOf(scene),
      wide
        ? lines(LEFT, below, noted, { fill: "var(--grey)", size: 12, gap: 1.5 })
        : [
            narrow.map((words, row) => label(0, below + 18 * row, words, { fill: "var(--grey)", size: 12 })),
            [
              ...Object.entries(state.doing).map(([name, words]) => `${name}: ${words.replace("\n", ", ")}`),
              ...state.phases.map(
                ([full, empty], stage) => `stage ${stage}: full in phase ${full}, empty in phase ${empty}`,
              ),
            ].map((words, row) => label(0, below + 52 + 20 * row, words)),
          ],
    ],
  };
}

// What the marks of a wide picture mean, in one line or two.
function notesOf(trace, width) {
  const notes = [
    "pale: on its way, or still to come",
    "half as high: the unit works for both",
    "dashed: waits",
    "grey: O is rescaled",
    ...(trace.workers.length > 1 ? ["tensor core: consumer 0 above, 1 below"] : []),
  ];
  const line = (some) => some.join("  ·  ");
  return fits(line(notes), width - LEFT, 12) ? [line(notes)] : [line(notes.slice(0, 2)), line(notes.slice(2))];
}

// The place of each row across time, and its thickness.
function laidOut(trace, wide, width) {
  const stages = Array.from({ length: trace.stages }, (_, stage) => `stage ${stage}`);
  const gap = wide ? 10 : 5;
  const fixed = wide
    ? { "copy engine": 32, "tensor core": 56, consumer: 62 }
    : { "copy engine": 34, "tensor core": 62, consumer: 60 };
  const names = ["copy engine", ...stages, "tensor core", ...trace.workers];
  const used =
    CLOCK +
    fixed["copy engine"] +
    fixed["tensor core"] +
    trace.workers.length * fixed.consumer +
    gap * (names.length - 1);
  const stage = wide ? 44 : Math.min((width - used - 4) / trace.stages, 60);
  let at = wide ? TOP.wide : CLOCK;
  return names.map((name) => {
    const size = fixed[name.startsWith("consumer") ? "consumer" : name] ?? stage;
    const row = { name, at, size };
    at += size + gap;
    return row;
  });
}

// The names of the rows, and what each does now.
function headsOf({ rows, state, wide, width }) {
  const phase = (name) => state.phases[Number(name.slice(6))].map((bit, at) => `${["full", "empty"][at]} ${bit}`);
  if (wide) {
    return [
      label(width - RIGHT + 10, TOP.wide - 22, "now", { fill: "var(--grey)" }),
      rows.map(({ name, at, size }) => {
        const middle = at + size / 2;
        const doing = name.startsWith("stage")
          ? phase(name).map((words) => words.replace(" ", " in phase "))
          : state.doing[name].split("\n");
        return [
          label(0, middle, name, { weight: 600 }),
          doing.map((words, line) => label(width - RIGHT + 10, middle + 18 * (line - (doing.length - 1) / 2), words)),
        ];
      }),
    ];
  }
  const first = rows.find(({ name }) => name === "stage 0");
  const clock = label(0, TOP.narrow - 14, "cycles", { size: 12 });
  return rows.map(({ name, at, size }) => {
    const middle = at + size / 2;
    const above =
      name === "copy engine"
        ? ["copy"]
        : name === "tensor core"
          ? ["tensor", "core"]
          : name.startsWith("consumer")
            ? ["consumer", name.slice(9)]
            : [name.slice(6)];
    const words = above.map((word, line) =>
      label(middle, TOP.narrow - 14 - 16 * (above.length - 1 - line), word, { anchor: "middle", size: 12 }),
    );
    return name === "stage 0" ? [clock, words, label(first.at, TOP.narrow - 34, "stages", { size: 12 })] : words;
  });
}

const wholeOf = (box, { named, place }) => place(named[box.row], box.low, box.high, box.start, box.end);

// All boxes, with a veil over those after the clock. Only the veil moves with the clock, and no box is drawn again.
function boxesOf(scene) {
  const { trace, now, long, wide, end, width } = scene;
  const lookOf = ({ kind, coming }) => `${COLORS[kind]} ${coming ? 0.35 : 1}`;
  const drawn = [...new Set(trace.boxes.map(lookOf))].map((look) => {
    const [color, faint] = look.split(" ");
    const places = trace.boxes.filter((box) => lookOf(box) === look).map((box) => wholeOf(box, scene));
    return boxes(look, places, { fill: `var(--${color})`, "fill-opacity": faint, stroke: "var(--paper)" });
  });
  const whole = long(trace.cycles) - long(0) + 1; // including half of the last outline
  const left = (long(trace.cycles) + 1 - long(now)) / whole;
  const [area, scale] = wide
    ? [{ y: TOP.wide, width: whole, height: end - TOP.wide }, `scaleX(${left})`]
    : [{ x: CLOCK, width: width - CLOCK, height: whole }, `scaleY(${left})`];
  const style = `${wide ? at(long(now), 0) : at(0, long(now))} ${scale}`;
  const veil = { fill: "var(--paper)", "fill-opacity": 0.75, "pointer-events": "none" };
  return [
    drawn,
    h("rect", { key: "veil", class: "mark", style, ...area, ...veil }),
    trace.boxes.map((box, number) => spot(`box ${number}`, wholeOf(box, scene), box.tip)),
    trace.boxes.map((box, number) => nameOf(box, number, scene)),
  ];
}

function nameOf(box, number, scene) {
  const { now, wide } = scene;
  const { x, y, width, height } = wholeOf(box, scene);
  if (!box.name || !fits(box.name, width, SIZE) || height < SIZE) return false;
  const seat = box.high - box.low === 1 ? box.seat : 0.5; // a name of a product is in its consumer's half
  const [left, top] = wide ? [x + width / 2, y + seat * height] : [x + seat * width, y + height / 2];
  const fill = now > (box.start + box.end) / 2 ? `var(--on-${COLORS[box.kind]})` : "var(--ink)";
  return label(left, top, box.name, { key: `name ${number}`, anchor: "middle", fill });
}

// The place of a wait's line in its row: below the words, if there are any.
const waitsAt = (wide) => (wide ? 0.7 : 0.5);

function waitOf(wait, at, { now, named, place, wide }) {
  const across = waitsAt(wide);
  const { x, y, width, height } = place(named[wait.row], 0, 1, wait.start, wait.end);
  const line = wide
    ? { x1: x, x2: x + width, y1: y + across * height, y2: y + across * height }
    : { x1: x + across * width, x2: x + across * width, y1: y, y2: y + height };
  const readable = fits(wait.words, width, SIZE) && height >= 2 * SIZE;
  return h(
    "g",
    { key: `wait ${at}`, tip: wait.tip },
    h("rect", { x, y, width, height, fill: "transparent" }),
    h("line", {
      ...line,
      stroke: now > wait.start ? "var(--ink)" : "var(--grey)",
      "stroke-width": 1.5,
      "stroke-dasharray": "4 3",
    }),
    readable &&
      wide &&
      label(x + width / 2, y + across * height - 15, wait.words, {
        anchor: "middle",
        fill: now > wait.start ? "var(--ink)" : "var(--grey)",
      }),
  );
}

// The scale of time. A click sets the clock.
function timeOf({ trace, long, wide, end, high, unit }) {
  const every = wide ? 2000 : 1000;
  const ticks = Array.from({ length: Math.floor(trace.cycles / every) + 1 }, (_, at) => at * every);
  const drag = dragged(trace, wide, unit);
  const strip = wide
    ? { x: LEFT, y: end, width: trace.cycles * unit, height: 26 }
    : { x: 0, y: TOP.narrow, width: CLOCK - 4, height: high - TOP.narrow };
  return [
    ticks.map((cycle) =>
      wide
        ? label(long(cycle), end + 16, grouped(cycle), { anchor: "middle", size: 12 })
        : label(CLOCK - 8, long(cycle), grouped(cycle), { anchor: "end", size: 12 }),
    ),
    wide && label(0, end + 16, "cycles", { size: 12 }),
    h("rect", {
      key: "time",
      ...strip,
      fill: "transparent",
      drag,
      tip: { title: "time, in cycles", lines: ["click or drag: the clock goes there"] },
    }),
  ].filter(Boolean);
}

// The moment that is nearest to a point.
function dragged(trace, wide, unit) {
  const cycle = (point) => (wide ? point.x - LEFT : point.y - TOP.narrow) / unit;
  return { field: "step", to: (point) => ({ step: trace.times.indexOf(nearest(trace.times, cycle(point))) }) };
}

function clockOf({ trace, now, long, wide, end, unit }) {
  const drag = { ...dragged(trace, wide, unit), name: "the clock", grows: wide ? undefined : [1, 1] };
  const tip = { title: "the clock: drag it", lines: [`cycle ${grouped(now)}`] };
  const [top, bottom] = wide ? [TOP.wide - 14, end + 4] : [CLOCK - 6, CLOCK + 290];
  const line = wide ? { y1: top, y2: bottom } : { x1: top, x2: bottom };
  const band = wide ? { x: -12, y: top - 14, width: 24, height: 16 } : { x: top - 4, y: -12, width: 24, height: 24 };
  const head = wide
    ? `M-8 ${top - 12} L8 ${top - 12} L0 ${top + 2} Z`
    : `M${top - 2} -8 L${top - 2} 8 L${top + 11} 0 Z`;
  return h(
    "g",
    { key: "clock", class: "mark", style: wide ? at(long(now), 0) : at(0, long(now)), drag, tip },
    h("line", { ...line, stroke: "transparent", "stroke-width": 12 }),
    h("line", { ...line, stroke: "var(--ink)", "stroke-width": 2 }),
    h("rect", { ...band, fill: "transparent" }),
    h("path", { d: head, fill: "var(--ink)" }),
  );
}

// Lines from the units that have just ended a wait to the consumers that waited.
function linkOf(link, at, { named, long, wide }) {
  const across = ({ at: start, size }, part) => start + part * size;
  const [from, to] = [across(named[link.from], 0.5), across(named[link.to], waitsAt(wide))];
  const [since, until] = [long(link.since), long(link.at)];
  const line = wide ? { x1: since, y1: from, x2: until, y2: to } : { x1: from, y1: since, x2: to, y2: until };
  return h(
    "g",
    { key: `link ${at}`, "pointer-events": "none" },
    h("line", { ...line, stroke: "var(--paper)", "stroke-width": 6 }),
    h("line", { ...line, stroke: "var(--wrong)", "stroke-width": 2.5 }),
    h("circle", { cx: line.x1, cy: line.y1, r: 3, fill: "var(--wrong)" }),
    h("circle", { cx: line.x2, cy: line.y2, r: 5, fill: "var(--paper)", stroke: "var(--wrong)", "stroke-width": 2.5 }),
  );
}
