// Runs side by side under one clock: the map of their scores with Q, K, V and O around it, fast memory, and the bill,
// the bytes that each tensor moved. With ``brief``, memory and bill are left out, and on a phone the words stand beside
// the map, so that three runs fit on its screen.

import { h } from "./svg.js";
import { amount, fits, room, times, wrapped } from "./words.js";
import { SIZE, WIDE, bars, edges, label, legend, lines, memoryBox, rule, slot, tile } from "./marks.js";

const STRIP = 24; // thickness of Q, K, V and O beside the scores
const GAP = 5;
const FAST = 30; // height of the fast memory
const TITLE = 15; // size of a panel's title
const HEAD = 62; // height of a title of one line, progress and status
const ABOVE = 2 * (STRIP + 3) + GAP; // height of K and V above the scores
const BILL = 8 + 7 * 18; // height of the bill
const TENSORS = ["Q", "K", "V", "S", "P", "O", "lse"];

export function draw({ trace, state, step, width, brief = false }) {
  const clock = trace.clock[step];
  const count = trace.runs.length;
  const wide = width >= (brief ? 600 : WIDE);
  const space = 28;
  const panelWidth = wide ? Math.min((width - space * (count - 1)) / count, 420) : width;
  const side = wide ? Math.min(panelWidth - 2 * (STRIP + GAP), 210) : Math.min(width * (brief ? 0.24 : 0.42), 220);
  const beside = brief && !wide ? side + 2 * STRIP + 3 * GAP + 14 : 0; // the left edge of the words
  const titles = trace.runs.map((run) => titleOf(run.name, panelWidth - beside));
  const head = HEAD + (Math.max(...titles.map((rows) => rows.length)) - 1) * 1.2 * TITLE;
  const rest = wide ? ABOVE + side + 46 + FAST + 30 + BILL : Math.max(ABOVE + side + 24, 22 + FAST + 30 + BILL) + 22;
  const high = !brief ? head + rest : wide ? head + ABOVE + side + 24 : Math.max(ABOVE + side + 24, head + 24);
  const panels = trace.runs.map((run, at) => {
    const [x, y] = wide ? [at * (panelWidth + space), 0] : [0, at * high];
    return panel({
      trace,
      run,
      title: titles[at],
      at,
      x,
      y,
      head,
      width: panelWidth,
      side,
      wide,
      brief,
      beside,
      clock,
      state,
    });
  });
  const bottom = (wide ? high : count * high) + 14;
  const key = [
    { name: "slow", stored: true, words: "scores in slow memory" },
    { name: "S", words: "scores, never stored" },
    { name: "S", current: true, words: "current tile" },
  ];
  const number = "3×: loaded (O: stored) 3 times";
  const notes = wide
    ? [legend(0, bottom, key), label(width, bottom, number, { anchor: "end", fill: "var(--grey)" })]
    : [
        key.map((entry, row) => legend(0, bottom + 20 * row, [entry])),
        label(0, bottom + 60, number, { fill: "var(--grey)" }),
      ];
  return { height: bottom + (wide ? 14 : 74), nodes: [panels, notes] };
}

// A title in lines. The first line ends at its colon.
function titleOf(name, width) {
  const space = 0.9 * width; // it is bold
  return fits(name, space, TITLE) ? [name] : name.split(/(?<=:) /).flatMap((part) => wrapped(part, space, TITLE));
}

// The transfers of a run up to ``clock`` bytes, the last of them, and whether it has ended.
function until(run, clock) {
  let low = 0;
  let high = run.lines.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (run.lines[middle].moved <= clock) low = middle + 1;
    else high = middle;
  }
  return { done: run.lines.slice(0, low), now: run.lines[low - 1], ended: low === run.lines.length };
}

function panel({ trace, run, title, at, x, y: above, head, width, side, wide, brief, beside, clock, state }) {
  const { done, now, ended } = until(run, clock);
  const place = (name) => `${at} ${name}`; // keys differ from run to run
  const y = beside ? above : above + head; // below title, progress and status
  const left = x + STRIP + GAP;
  const top = y + ABOVE;
  const strips = { Q: [x, top], K: [left, y], V: [left, y + STRIP + 3], O: [left + side + GAP, top] };
  const box = (name, [start, stop]) => {
    const across = name === "K" || name === "V";
    const unit = side / (across ? trace.Nk : trace.Nq);
    const [x0, y0] = strips[name];
    return across
      ? { x: x0 + start * unit, y: y0, width: (stop - start) * unit, height: STRIP }
      : { x: x0, y: y0 + start * unit, width: STRIP, height: (stop - start) * unit };
  };

  const right = left + side + STRIP + 2 * GAP + 14;
  const fast = wide
    ? { x: x + 1, y: top + side + 46, width: width - 2 }
    : { x: right, y: y + 22, width: x + width - right - 2 };
  const inside = packed(trace, ended ? [] : (now?.resident ?? []), fast);
  // The place from which a stored tile moves; none if fast memory is not drawn.
  const from = (name) => (brief ? undefined : (inside.tiles.find(({ letter }) => letter === name) ?? fast));
  return h(
    "g",
    { key: place("panel"), class: "compared" },
    progress({
      trace,
      run,
      title,
      now,
      ended,
      x: x + beside,
      above,
      y: above + head,
      width: width - beside,
      place,
      below: beside > 0,
    }),
    namesOf(strips, side),
    map({ trace, done, now: ended ? undefined : now, left, top, side, place }),
    Object.keys(strips).map((name) => strip({ run, name, done, now, ended, box, place, from })),
    !brief && grips({ trace, run, state, left, top, side, place }),
    !brief &&
      fastMemory({ trace, inside, fast, place, done, box: (one) => one.name in strips && box(one.name, one.rows) }),
    !brief &&
      bill({ trace, done, x: wide ? x : fast.x, y: fast.y + FAST + 30, width: wide ? width : fast.width, place }),
  );
}

function namesOf(strips, side) {
  return Object.entries(strips).map(([name, [x0, y0]]) =>
    name === "K" || name === "V"
      ? label(x0 - 8, y0 + STRIP / 2, name, { anchor: "end", weight: 650 })
      : label(x0 + STRIP / 2, y0 + side + 11, name, { anchor: "middle", weight: 650 }),
  );
}

// The edges of the tiles, to drag. Scores that are stored move in bands of queries, so Bc has no edge. A replay has no
// edges: its tiles were recorded.
function grips({ trace, run, state, left, top, side, place }) {
  if (state.Br === undefined) return [];
  const unit = { x: side / trace.Nk, y: side / trace.Nq };
  const Bc = run.lines.some(({ name }) => name[0] === "S") ? undefined : state.Bc;
  return edges({ key: place("edge"), x: left, y: top, unit, Br: state.Br, Bc, named: run === trace.runs.at(-1) });
}

// A run's title, the bytes that it has moved out of all its bytes, and its status. below: whether the status has a line
// of its own.
function progress({ trace, run, title, now, ended, x, above, y, width, place, below }) {
  const longest = Math.max(...trace.runs.map((one) => one.moved));
  const moved = now?.moved ?? 0;
  const reach = (bytes) => (bytes / longest) * width;
  const bar = { y: y - 40, height: 10 };
  const far = `${amount(moved)} of ${amount(run.moved)}`;
  const where = status(run, now, ended).find((words) => fits(below ? words : `${words} ${far}`, width, SIZE));
  return [
    lines(x, above + 8, title, { weight: 650, size: TITLE, gap: 1.2 }),
    h("rect", { key: place("whole"), x, ...bar, width: reach(run.moved), fill: "var(--paper)", stroke: "var(--grey)" }),
    h("rect", {
      key: place("moved"),
      x,
      ...bar,
      width: reach(moved),
      fill: "var(--ink)",
      class: "grow",
      tip: { title: run.name, lines: [`${far} moved`] },
    }),
    label(x, below ? y + 4 : y - 18, where, { fill: "var(--grey)" }),
    below
      ? label(x, y - 18, far, { fill: "var(--grey)" })
      : label(x + width, y - 18, far, { anchor: "end", fill: "var(--grey)" }),
  ];
}

// The status of a run in words, in several lengths, the longest first.
function status(run, now, ended) {
  if (ended) return ["done", ""];
  if (!now) return ["not begun", ""];
  const same = run.kernels.every((kernel) => kernel === run.kernels[0]);
  const which = `${same ? "program" : "kernel"} ${now.number} of ${run.kernels.length}`;
  return same ? [which, ""] : [`${which}: ${run.kernels[now.number - 1]}`, which, ""];
}

// The tiles of a thin tensor, each with the number of times that it was loaded (O: stored). Each store gives a tile of
// O a new key, so that it moves in from fast memory again.
function strip({ run, name, done, now, ended, box, place, from }) {
  const kind = name === "O" ? "store" : "load";
  const passed = by(
    "rows",
    done.filter((one) => one.name === name),
  );
  const held =
    !ended && now?.resident.some(([held]) => held === name) && String(done.findLast((one) => one.name === name)?.rows);
  return [
    ...by(
      "rows",
      run.lines.filter((one) => one.name === name),
    ),
  ].map(([key, [{ rows, nbytes }]]) => {
    const lines = passed.get(key) ?? [];
    const last = lines.findLast((one) => one.kind === kind);
    const count = (what) => lines.findLast((one) => one.kind === what)?.times ?? 0;
    const moves = ["load", "store"]
      .filter((what) => count(what))
      .map((what) => `${what === "load" ? "loaded" : "stored"} ${times(count(what))}, ${amount(nbytes)} each`);
    const there = name === "O" && !last ? "not yet written" : "in slow memory";
    const tip = {
      title: `${name}, rows ${rows[0]} to ${rows[1] - 1}`,
      lines: [...(moves.length ? moves : ["not moved yet"]), key === held ? "in fast memory now" : there],
      code: last?.code,
    };
    const comes = kind === "store" && last;
    return tile({
      key: place(`${name} ${key} ${comes ? last.times : ""}`),
      from: comes ? from(name) : undefined,
      ...box(name, rows),
      name,
      letter: last && `${last.times}×`,
      faint: last ? undefined : name === "O" ? 0.12 : 0.3,
      current: key === held,
      tip,
    });
  });
}

// Lines grouped by the value of a field, in the order of first appearance.
function by(field, lines) {
  const found = new Map();
  for (const one of lines) {
    const key = String(one[field]);
    if (found.has(key)) found.get(key).push(one);
    else found.set(key, [one]);
  }
  return found;
}

const trip = ({ name, kind }) => `${name} ${kind === "load" ? "loaded" : "stored"}`;

// The scores: in bands that travel, or in tiles that are computed where they are used.
function map({ trace, done, now, left, top, side, place }) {
  const unit = { x: side / trace.Nk, y: side / trace.Nq };
  const cells = [
    ...by(
      "tile",
      done.filter((one) => one.tile),
    ),
  ].map(([key, lines]) => {
    const last = lines.at(-1);
    const [[r0, r1], [c0, c1]] = last.tile;
    const travelled = ["S", "P"].includes(last.name[0]);
    const current = now !== undefined && String(now.tile) === key;
    const trips = lines.filter((one) => ["S", "P"].includes(one.name[0]));
    const title = `scores of queries ${r0} to ${r1 - 1}, keys ${c0} to ${c1 - 1}`;
    const tip = travelled
      ? {
          title,
          lines: [`crossed to or from slow memory ${times(trips.length)}: ${trips.map(trip).join(", ")}`],
        }
      : { title, lines: ["computed in fast memory, used and forgotten", "never stored"], code: last.code };
    const letter = travelled
      ? current
        ? `${last.name.replace("_", " ")} ${last.kind === "load" ? "comes" : "goes"}`
        : `crossed ${trips.length}×`
      : current
        ? "S"
        : undefined;
    return tile({
      key: place(`cell ${key}`),
      x: left + c0 * unit.x,
      y: top + r0 * unit.y,
      width: (c1 - c0) * unit.x,
      height: (r1 - r0) * unit.y,
      name: travelled ? "slow" : "S",
      letter,
      stored: travelled && !current,
      current,
      tip,
    });
  });
  const empty = { title: "scores", lines: ["nothing computed here yet"] };
  return [
    slot({ key: place("map"), x: left, y: top, width: side, height: side, tip: empty }),
    h("g", { key: place("cells") }, cells),
    side > 110 && label(left + side, top + side + 11, "keys →", { anchor: "end", fill: "var(--grey)", size: 12 }),
    side > 110 && label(left, top + side + 11, "↓ queries", { fill: "var(--grey)", size: 12 }),
  ];
}

// The tiles in fast memory side by side, as wide as their bytes.
function packed(trace, resident, fast) {
  const order = (name) => TENSORS.indexOf(name.split("_")[0]) + (TENSORS.indexOf(name.split("_")[0]) < 0 ? 99 : 0);
  let left = fast.x;
  const tiles = [...resident]
    .sort(([a], [b]) => order(a) - order(b))
    .map(([name, bytes]) => {
      const x = left;
      const width = (bytes / trace.sram) * fast.width;
      left += width;
      return { name, letter: name[0], x, y: fast.y, width, bytes };
    });
  return { tiles, used: resident.reduce((sum, [, bytes]) => sum + bytes, 0) };
}

// box: the place of a line's tile in slow memory. Each load gives a tile a new key, so that it moves in from there.
function fastMemory({ trace, inside, fast, place, done, box }) {
  const over = inside.used > trace.sram;
  const beside = `${room(inside.used)} of ${room(trace.sram)}`;
  const words =
    [over ? `does not fit: ${beside}` : `fast memory: ${beside}`, beside].find((one) => fits(one, fast.width, 13)) ??
    room(inside.used);
  return h(
    "g",
    { key: place("fast") },
    label(fast.x, fast.y - 10, words, { weight: over ? 700 : undefined, fill: over ? "var(--wrong)" : "var(--ink)" }),
    memoryBox({ ...fast, height: FAST, color: over ? "var(--wrong)" : "var(--fast)", key: "box" }),
    inside.tiles
      .filter((one) => one.x < fast.x + fast.width)
      .map((one) => {
        const loaded = done.findLastIndex(({ kind, name }) => kind === "load" && name === one.name);
        const name = ["Q", "K", "V", "S", "P", "O"].includes(one.letter) ? one.letter : "standard";
        return tile({
          key: `${one.name} ${loaded}`,
          ...one,
          y: fast.y + 2,
          height: FAST - 4,
          width: Math.min(one.width, fast.x + fast.width - one.x),
          name,
          letter: one.letter,
          from: loaded < 0 ? undefined : box(done[loaded]),
          tip: { title: one.name.replace("_", " "), lines: [`${room(one.bytes)} of fast memory`] },
        });
      }),
  );
}

function bill({ trace, done, x, y, width, place }) {
  const total = (lines, kind, name) =>
    lines.findLast((one) => one.kind === kind && one.name.split("_")[0] === name)?.bill ?? 0;
  const used = TENSORS.filter((name) =>
    trace.runs.some((run) => run.lines.some((one) => one.name.split("_")[0] === name)),
  );
  const longest = Math.max(
    ...trace.runs.flatMap((run) =>
      used.map((name) => total(run.lines, "load", name) + total(run.lines, "store", name)),
    ),
  );
  const rows = used.map((name) => {
    const [loaded, stored] = [total(done, "load", name), total(done, "store", name)];
    const color = `var(--${name === "lse" ? "standard" : name})`;
    return {
      name,
      parts: [
        { value: loaded, color },
        { value: stored, color, stored: true },
      ],
      words: loaded + stored ? amount(loaded + stored) : "",
      tip: { title: name, lines: [`loaded ${amount(loaded)}`, `stored ${amount(stored)} (hatched)`] },
    };
  });
  return [
    label(
      x,
      y - 8,
      fits("moved, by tensor (hatched: stored)", width, 12) ? "moved, by tensor (hatched: stored)" : "moved",
      { size: 12, fill: "var(--grey)" },
    ),
    rule(x, x + width, y + 2, { color: "var(--pale)", key: place("rule") }),
    bars({ x, y: y + 8, rows, scale: (width - 98) / longest, row: 18, key: place("bill") }),
  ];
}
