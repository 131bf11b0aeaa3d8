// Two ways under one clock. Each has slow memory on the left, fast memory on the right, and as many bytes in each step.

import { h } from "./svg.js";
import { amount, fits } from "./words.js";
import { WIDE, bars, label, legend, memoryBox, slot, tile } from "./marks.js";

const HEAD = 62; // height of a panel's title, meter and status
const NAME = 20; // height of a matrix's name
const PAD = 10;
const GAP = 44; // room between the memories
const ROW = 16; // height of a row of the bill
const SQUARES = ["S", "S_masked", "P", "P_dropped", "Z"];
const TENSORS = ["Q", "K", "V", "O", ...SQUARES];
const WORDS = { S_masked: "S masked", P_dropped: "P dropped", Z: "Z" };
const COLOR = { S_masked: "S", P_dropped: "P", Z: "standard", lse: "standard", S_ij: "S" };
const wordsOf = (name) => WORDS[name] ?? name;
const thin = (name) => ["Q", "K", "V", "O"].includes(name);

export function draw({ trace, step, width }) {
  const clock = step * trace.step;
  const wide = width >= WIDE;
  const space = 36;
  const across = wide ? (width - space) / 2 : width;
  const unit = Math.min((across - 3 * PAD - 2 * PAD - GAP - 2 * PAD) / 4, 78); // pixels of N rows
  const most = Math.max(...trace.runs.map((run) => run.moved));
  const bill = TENSORS.filter((name) => trace.runs.some((run) => run.lines.some((one) => one.name === name)));
  const high = HEAD + 26 + 2 * (unit + NAME) + 2 * PAD + 44 + bill.length * ROW + 58;
  const panels = trace.runs.map((run, at) => {
    const [x, y] = wide ? [at * (across + space), 0] : [0, at * (high + 22)];
    return panel({ trace, run, at, x, y, across, unit, clock, most, bill });
  });
  const bottom = (wide ? high : 2 * high + 22) + 6;
  const pace = `Each step moves ${amount(trace.step)}, the size of Q.`;
  const notes = wide
    ? ["Equal areas are equal bytes (Z has one byte per number, the others two)."]
    : ["Equal areas are equal bytes", "(Z: one byte per number, the others two).", pace];
  return {
    height: bottom + 34 + 20 * notes.length,
    nodes: [
      panels,
      h(
        "g",
        { key: "notes" },
        legend(0, bottom + 4, [
          { name: "slow", stored: true, words: "stored in slow memory" },
          { name: "slow", words: "moving or in use" },
        ]),
        wide && label(width, bottom + 4, pace, { anchor: "end", fill: "var(--grey)" }),
        notes.map((words, row) => label(0, bottom + 28 + 20 * row, words, { fill: "var(--grey)" })),
      ),
    ],
  };
}

function panel({ trace, run, at, x, y, across, unit, clock, most, bill }) {
  const key = (name) => `${at} ${name}`;
  const done = run.lines.filter((one) => one.moved <= clock);
  const next = run.lines[done.length];
  const ended = next === undefined;
  const moved = Math.min(clock, run.moved);
  const pieces = ended ? [] : piecesOf(run, clock - trace.step, clock);
  const now = pieces.at(-1)?.line ?? done.at(-1);
  const place = layout({ x, y: y + HEAD + 26, unit });
  const stored = (name) =>
    run.lines.reduce((sum, one) => sum + (one.kind === "store" && one.name === name ? overlap(one, 0, clock) : 0), 0);
  return h(
    "g",
    { key: key("panel"), class: "compared" },
    meter({ run, key, x, y, across, moved, most, trace, clock }),
    status({ run, now, ended, clock, x, y: y + 50, across }),
    memoryBox({ ...place.slow, name: "slow memory", color: "var(--slow)", key: key("slow") }),
    memoryBox({ ...place.fast, color: "var(--fast)", key: key("fast") }),
    label(place.fast.x + place.fast.width, place.fast.y - 12, "fast memory", { weight: 600, anchor: "end" }),
    TENSORS.map((name) => matrix({ run, name, key, place, unit, trace, part: stored(name) / whole(trace, name) })),
    fastTiles({ run, key, place, unit, trace, now, ended, clock, pieces }),
    pieces.map((piece, number) => flying({ ...piece, key: key(`piece ${clock} ${number}`), place, unit, trace })),
    arrow({ place, pieces, key }),
    billOf({ trace, run, at, x, y: place.slow.y + place.slow.height + 44, across, clock, bill }),
    foot({ run, papers: trace.papers, x, y: place.slow.y + place.slow.height + 44 + bill.length * ROW + 22, across }),
  );
}

// The parts of lines that moved between two readings of the clock, each as two shares of its rows: from and to.
function piecesOf(run, from, to) {
  return run.lines
    .filter((one) => overlap(one, from, to) > 0)
    .map((line) => {
      const begun = line.moved - line.nbytes;
      return {
        line,
        from: Math.max(from - begun, 0) / line.nbytes,
        to: Math.min(to - begun, line.nbytes) / line.nbytes,
      };
    });
}

const overlap = (line, from, to) => Math.max(0, Math.min(to, line.moved) - Math.max(from, line.moved - line.nbytes));
const widthOf = (trace, name, unit) => (thin(name) ? (unit * trace.d) / trace.N : name === "Z" ? unit / 2 : unit);
const whole = (trace, name) => (thin(name) ? 2 * trace.N * trace.d : trace.N ** 2 * (name === "Z" ? 1 : 2));

// The places of both memories, of the matrices in slow memory and of the slots in fast memory.
function layout({ x, y, unit }) {
  const high = 2 * (unit + NAME) + 2 * PAD;
  const slow = { x: x + 1, y, width: 3 * unit + 4 * PAD, height: high };
  const fast = { x: x + slow.width + GAP, y, width: unit + 2 * PAD, height: high };
  const column = (number) => slow.x + PAD + number * (unit + PAD);
  const top = y + PAD + NAME;
  const below = top + unit + NAME;
  const small = (name) => ["Q", "K", "V", "O"].indexOf(name) / 4;
  const homes = {
    S: [column(1), top],
    S_masked: [column(2), top],
    P: [column(0), below],
    P_dropped: [column(1), below],
    Z: [column(2), below],
  };
  return {
    slow,
    fast,
    home: (name) => homes[name] ?? [column(small(name)) + 4, top],
    slot: (name) => (thin(name) ? [fast.x + PAD + 4 + unit * small(name), top] : [fast.x + PAD, below + unit / 4]),
  };
}

function meter({ run, key, x, y, across, moved, most, trace, clock }) {
  const reach = (bytes) => (bytes / most) * across;
  const squares = run.lines.reduce((sum, one) => sum + (SQUARES.includes(one.name) ? overlap(one, 0, clock) : 0), 0);
  const ended = moved === run.moved; // its total is hidden until then, for readers to guess
  const drag = {
    field: "step",
    name: run === trace.runs[0] ? "bytes moved" : undefined, // both meters are one clock, and one is its handle
    to: (point) => ({ step: ((point.x - x) / across) * (most / trace.step) }),
  };
  const tip = {
    title: run.name,
    lines: [
      `${amount(moved)} ${ended ? "in all" : "moved so far"}`,
      `N × N matrices: ${amount(squares)}; all else: ${amount(moved - squares)}`,
      "drag to move the clock",
    ],
  };
  return [
    label(x, y + 8, run.name, { weight: 650, size: 15 }),
    label(x + across, y + 8, ended ? `${amount(moved)} in all` : `${amount(moved)} moved`, {
      anchor: "end",
      weight: 600,
    }),
    h(
      "g",
      { key: key("meter"), tip, drag },
      h("rect", { x, y: y + 20, width: across, height: 24, fill: "transparent" }),
      h("rect", { x, y: y + 24, width: across, height: 14, fill: "var(--paper)", stroke: "var(--grey)" }),
      h("rect", {
        key: "thin",
        x,
        y: y + 24,
        width: reach(moved - squares),
        height: 14,
        fill: "var(--ink)",
        class: "grow",
      }),
      h("rect", {
        key: "squares",
        x: x + reach(moved - squares),
        y: y + 24,
        width: reach(squares),
        height: 14,
        fill: "var(--P)",
        class: "grow",
      }),
    ),
  ];
}

function status({ run, now, ended, clock, x, y, across }) {
  const same = run.kernels.every((kernel) => kernel === run.kernels[0]);
  const what =
    now &&
    (same
      ? `program ${now.number} of ${run.kernels.length}`
      : `kernel ${now.number} of ${run.kernels.length}, ${now.name && run.kernels[now.number - 1]}`);
  const words = ended ? "done" : clock === 0 ? "not begun" : `${what}: ${now.kind}s ${wordsOf(now.name)}`;
  return label(x, y, fits(words, across, 13) ? words : what, {
    fill: ended ? "var(--ink)" : "var(--grey)",
    weight: ended ? 650 : undefined,
  });
}

// A matrix in slow memory, as far as it is stored; an empty place if this way never stores it.
function matrix({ run, name, key, place, unit, trace, part }) {
  const [x, y] = place.home(name);
  const width = widthOf(trace, name, unit);
  const isInput = ["Q", "K", "V"].includes(name);
  const lines = run.lines.filter((one) => one.name === name);
  const times = (kind) =>
    lines.filter((one) => one.kind === kind).reduce((sum, one) => sum + one.nbytes, 0) / whole(trace, name);
  const size = thin(name) ? `${trace.N} × ${trace.d}` : `${trace.N} × ${trace.N}`;
  const trips = [times("store") && `stored ${times("store")}×`, times("load") && `loaded ${times("load")}×`]
    .filter(Boolean)
    .join(", ");
  const never = run.name.startsWith("Fused") ? "never in slow memory" : "never: this run has no such kernel";
  const title = `${name === "Z" ? "Z, the dropout mask" : wordsOf(name)}: ${size}, ${amount(whole(trace, name))}`;
  const tip = { title, lines: [lines.length ? `in the whole run ${trips}` : never], code: lines.at(-1)?.code };
  const middle = x + width / 2;
  return h(
    "g",
    { key: key(`home ${name}`), tip },
    slot({ key: "slot", x, y, width, height: unit, dash: !lines.length }),
    lines.length > 0 &&
      (isInput || part > 0) &&
      tile({ key: "there", x, y, width, height: unit * (isInput ? 1 : part), name: COLOR[name] ?? name, stored: true }),
    !lines.length &&
      label(middle, y + unit / 2, "never", {
        anchor: "middle",
        size: 12,
        fill: "var(--grey)",
        rotate: width < unit && -90,
      }),
    label(middle, y - 10, wordsOf(name), {
      anchor: "middle",
      size: 12,
      fill: lines.length ? "var(--ink)" : "var(--grey)",
    }),
  );
}

// What fast memory holds: thin tiles in their slots, and one band or tile of scores.
function fastTiles({ run, key, place, unit, trace, now, ended, clock, pieces }) {
  if (ended || !now || clock === 0) return [];
  const held = new Set(now.resident.map(([name]) => name));
  const arriving = pieces.filter((one) => one.line.kind === "load").map((one) => one.line.name);
  const scores = SQUARES.includes(now.name) ? now.name : ["S_ij", ...SQUARES].find((name) => held.has(name));
  const tiles = ["Q", "K", "V", "O"]
    .filter((name) => held.has(name) || arriving.includes(name))
    .map((name) => {
      const [x, y] = place.slot(name);
      const line = run.lines.find((one) => one.name === name);
      const rows = line ? line.rows[1] - line.rows[0] : trace.N;
      const tip = {
        title: `${name} in fast memory`,
        lines: [`${rows} rows of ${trace.d} numbers`],
        code: line?.code,
      };
      return h(
        "g",
        { key: `held ${name}`, tip },
        label(x + widthOf(trace, name, unit) / 2, y - 9, name, { anchor: "middle", size: 12 }),
        held.has(name) &&
          tile({ key: "tile", x, y, width: widthOf(trace, name, unit), height: (unit * rows) / trace.N, name }),
      );
    });
  if (!scores) return h("g", { key: key("held") }, tiles);
  const [x, y] = place.slot(scores);
  const piece = pieces.findLast((one) => one.line.name === scores);
  const filled = piece && piece.line.kind === "load" ? piece.to : 1;
  const square = scores === "S_ij";
  const title = square ? "S_ij, then P_ij" : `a band of ${wordsOf(scores)}`;
  const lines = square
    ? ["256 queries, 256 keys", "computed here, used and forgotten: never stored"]
    : ["256 rows; bands are this high so that they can be seen, their height changes no byte"];
  const band = h(
    "g",
    { key: "scores", tip: { title, lines, code: square ? undefined : now.code } },
    label(x, y - 9, square ? "S, P" : wordsOf(scores), { size: 12 }),
    slot({ key: "slot", x, y, width: square ? unit / 4 : widthOf(trace, scores, unit), height: unit / 4, dash: true }),
    tile({
      key: `band ${scores}`,
      x,
      y,
      width: square ? unit / 4 : widthOf(trace, scores, unit),
      height: (unit / 4) * filled,
      name: COLOR[scores] ?? scores,
    }),
  );
  return h("g", { key: key("held") }, tiles, band);
}

// Rows that move from slow memory to fast memory, or back.
function flying({ line, from, to, key, place, unit, trace }) {
  if (line.name === "lse") return null; // one number per row is too thin to be seen
  const [first, last] = line.rows;
  const row = (share) => ((first + share * (last - first)) * unit) / trace.N;
  const [hx, hy] = place.home(line.name);
  const [sx, sy] = place.slot(line.name);
  const there = { x: hx, y: hy + row(from) };
  const here = { x: sx, y: sy + row(from) - (thin(line.name) && last - first === trace.N ? 0 : row(0)) };
  const [start, end] = line.kind === "load" ? [there, here] : [here, there];
  const height = row(to) - row(from);
  const nbytes = (to - from) * line.nbytes;
  const tip = {
    title: `${line.kind} ${wordsOf(line.name)}, rows ${first} to ${last - 1}`,
    lines: [`${amount(nbytes)} of its ${amount(line.nbytes)} in this step`],
    code: line.code,
  };
  return [
    line.kind === "load" &&
      h("rect", {
        key: `${key} taken`,
        x: there.x - 1,
        y: there.y,
        width: widthOf(trace, line.name, unit) + 2,
        height,
        fill: "none",
        stroke: "var(--ink)",
        "stroke-width": 2,
      }),
    tile({
      key,
      ...end,
      width: widthOf(trace, line.name, unit),
      height,
      name: COLOR[line.name] ?? line.name,
      current: height > 3,
      tip,
      from: start,
    }),
  ];
}

function arrow({ place, pieces, key }) {
  const kinds = ["load", "store"].filter((kind) => pieces.some((one) => one.line.kind === kind));
  const left = place.slow.x + place.slow.width + 6;
  const right = place.fast.x - 6;
  return kinds.map((kind, at) => {
    const y = place.slow.y + place.slow.height / 2 + 34 * at - 8;
    const [start, tip] = kind === "load" ? [left, right] : [right, left];
    const back = kind === "load" ? -7 : 7;
    return h(
      "g",
      { key: key(`arrow ${kind}`) },
      label((left + right) / 2, y - 11, kind, { anchor: "middle", size: 12, fill: "var(--grey)" }),
      h("path", {
        d: `M${start} ${y}H${tip}M${tip + back} ${y - 5}L${tip} ${y}L${tip + back} ${y + 5}`,
        fill: "none",
        stroke: "var(--ink)",
        "stroke-width": 2,
      }),
    );
  });
}

function billOf({ trace, run, at, x, y, across, clock, bill }) {
  const total = (one, name, kind, upTo) =>
    one.lines.reduce((sum, line) => sum + (line.name === name && line.kind === kind ? overlap(line, 0, upTo) : 0), 0);
  const longest = Math.max(
    ...trace.runs.flatMap((one) =>
      bill.map((name) => total(one, name, "load", Infinity) + total(one, name, "store", Infinity)),
    ),
  );
  const rows = bill.map((name) => {
    const [loaded, stored] = [total(run, name, "load", clock), total(run, name, "store", clock)];
    const color = `var(--${COLOR[name] ?? name})`;
    return {
      name: wordsOf(name),
      parts: [
        { value: loaded, color },
        { value: stored, color, stored: true },
      ],
      words: loaded + stored ? amount(loaded + stored) : "",
      tip: { title: wordsOf(name), lines: [`loaded ${amount(loaded)}`, `stored ${amount(stored)} (hatched)`] },
    };
  });
  return [
    label(x, y - 14, "moved, by matrix (hatched: stored)", { size: 12, fill: "var(--grey)" }),
    bars({ x, y, rows, scale: (across - 150) / longest, row: ROW, key: `${at} bill`, space: 78 }),
  ];
}

// The bytes counted here for the whole run, and those of the paper, if its run had the same mask and dropout.
function foot({ run, papers, x, y, across }) {
  const [gigabytes, milliseconds] = run.paper;
  const title = "forward and backward, 16 heads, batch of 64:";
  return [
    label(x, y, title, { fill: "var(--grey)" }),
    label(x, y + 20, `counted ${(run.whole / 1e9).toFixed(2)} GB`, { weight: 600 }),
    papers &&
      label(
        x + 140,
        y + 20,
        fits("x".repeat(40), across - 140, 13)
          ? `the paper: ${gigabytes.toFixed(1)} GB in ${milliseconds} ms on an A100`
          : `paper: ${gigabytes.toFixed(1)} GB, ${milliseconds} ms`,
      ),
  ];
}
