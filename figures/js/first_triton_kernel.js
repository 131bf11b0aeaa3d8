// A kernel's source with the line that runs, the programs, the tensors that they touch, and what one program holds.

import { h } from "./svg.js";
import { WIDE, label, slot, source, tile } from "./marks.js";

const LEFT = 20; // of the names of tensors
const CELL = 26; // at most
const SIDE = 28; // of a program
const LOAD = "Q";
const STORE = "O";

export function draw({ trace, step, width }) {
  const wide = width >= WIDE;
  const across = wide ? width * 0.44 : width;
  const columns = Math.ceil(trace.N / trace.width) * trace.width;
  const cell = Math.min(CELL, (across - LEFT) / columns);
  const done = trace.accesses.slice(0, step);
  const now = done.at(-1);
  const high = trace.height * cell;
  const programs = programsOf({ trace, step, now });
  const tops = Object.fromEntries(trace.tensors.map((name, at) => [name, 84 + at * (high + 18)]));
  const bottom = 84 + trace.tensors.length * (high + 18) + 26;
  const place = (one) => ({ x: LEFT + one.columns[0] * cell, y: tops[one.tensor] + one.rows[0] * cell });
  const held = registers({ trace, done, now, cell, x: LEFT, y: bottom, width: across, place });
  const code = source(wide ? width * 0.48 : 0, wide ? 30 : held.bottom + 86, trace.source, {
    width: wide ? width * 0.52 : width,
    lit: now?.ran.at(-1),
    ran: now?.ran,
    tips: tipsOf(trace, done),
    key: "line",
  });
  return {
    height: Math.max(held.bottom + 46, (wide ? 30 : held.bottom + 86) + code.height + 4),
    nodes: [
      h("g", { key: "programs" }, programs),
      h("g", { key: "registers" }, held.nodes),
      trace.tensors.map((name) => tensor({ trace, done, name, columns, cell, y: tops[name], spot: held.spot })),
      label(LEFT, held.bottom + 10, `loaded ${now?.loaded ?? 0} B, stored ${now?.stored ?? 0} B`, {
        key: "bytes",
        weight: 600,
      }),
      label(LEFT, held.bottom + 32, "the program's number: blue loaded, red stored", {
        key: "meaning",
        fill: "var(--grey)",
        size: 12,
      }),
      label(wide ? width * 0.48 : 0, wide ? 10 : held.bottom + 66, "bar: runs in this step; lit: moves something", {
        fill: "var(--grey)",
      }),
      h("g", { key: "source" }, code.nodes),
    ],
  };
}

// The programs, one of which is at work: a press goes to where it begins.
function programsOf({ trace, step, now }) {
  const boxes = Array.from({ length: trace.programs }, (_, program) => {
    const mine = trace.accesses.map((one, at) => ({ ...one, at })).filter((one) => one.program === program);
    const state = now?.program === program ? "at work" : mine.at(-1).at < step ? "has ended" : "has not begun";
    const rows = trace.height > 1 ? `rows ${span(mine[0].rows)}` : `columns ${span(mine[0].columns)}`;
    return h(
      "g",
      {
        key: `program ${program}`,
        tip: { title: `program ${program} ${state}`, lines: [rows, `${mine.length} loads and stores`] },
        drag: { field: "step", to: () => ({ step: mine[0].at + 1 }) },
      },
      h("rect", {
        x: LEFT + program * (SIDE + 3),
        y: 22,
        width: SIDE,
        height: 26,
        rx: 4,
        fill: state === "at work" ? "var(--fast)" : state === "has ended" ? "var(--pale)" : "var(--paper)",
        stroke: "var(--grey)",
      }),
      label(LEFT + program * (SIDE + 3) + SIDE / 2, 35, String(program), {
        anchor: "middle",
        weight: state === "at work" ? 700 : undefined,
        fill: state === "at work" ? "var(--on-fast)" : "var(--ink)",
      }),
    );
  });
  return [label(LEFT, 10, "one kernel, many programs", { fill: "var(--grey)" }), boxes];
}

const span = ([start, stop]) => (stop - start === 1 ? `${start}` : `${start} to ${stop - 1}`);

// The elements of a tensor, each with the number of the program that touched it; past the end they are nobody's.
function tensor({ trace, done, name, columns, cell, y, spot }) {
  const places = Array.from({ length: trace.height * columns }, (_, at) => [Math.floor(at / columns), at % columns]);
  const end = LEFT + trace.N * cell - 0.5;
  return h(
    "g",
    { key: `tensor ${name}` },
    label(0, y + (trace.height * cell) / 2, name, { weight: 650, size: 15 }),
    places.map(([row, column]) => {
      const size = { x: LEFT + column * cell, y: y + row * cell, width: cell - 1, height: cell - 1 };
      if (column < trace.N) return element({ trace, done, name, row, column, size, spot });
      const lines = [`column ${column} of ${trace.N}: the mask keeps every program out`];
      const tip = { title: `past the end of ${name}`, lines };
      return slot({ key: `${name} ${row} ${column}`, ...size, dash: true, tip });
    }),
    h("path", { d: `M${end} ${y - 5}V${y + trace.height * cell + 4}`, stroke: "var(--ink)", "stroke-width": 2 }),
    name === trace.tensors[0] &&
      label(Math.max(end, LEFT + 44), y - 12, `N = ${trace.N}`, { anchor: "end", size: 12, fill: "var(--grey)" }),
  );
}

// One element. A stored one comes from the registers.
function element({ trace, done, name, row, column, size, spot }) {
  const touched = done.filter((one) => one.tensor === name && inside(row, one.rows) && inside(column, one.columns));
  const last = touched.at(-1);
  const stored = last?.kind === "store";
  const often = touched.length === 1 ? "once" : "twice";
  const lines = [
    last ? `${last.kind === "load" ? "loaded" : "stored"} ${often}, by program ${last.program}` : "not touched yet",
  ];
  const title = trace.height > 1 ? `${name}[${row}, ${column}]` : `${name}[${column}]`;
  const across = last && {
    x: size.x - LEFT - last.columns[0] * (size.width + 1),
    y: (row - last.rows[0]) * (size.height + 1),
  };
  return tile({
    key: `${name} ${row} ${column} ${stored ? touched.length : ""}`,
    ...size,
    name: last ? (stored ? STORE : LOAD) : "pale",
    faint: last && last !== done.at(-1) ? 0.3 : undefined,
    letter: last?.program,
    tip: { title, lines, code: last && trace.source[last.ran.at(-1)].trim() },
    from: stored && spot ? { x: spot.x + across.x, y: spot.y + across.y } : undefined,
  });
}

const inside = (at, [start, stop]) => start <= at && at < stop;

// What the program at work has in its registers: its blocks, as wide as they are, masked lanes included.
function registers({ trace, done, now, cell, x, y, width, place }) {
  const mine = now ? done.map((one, at) => ({ ...one, at })).filter((one) => one.program === now.program) : [];
  const loads = trace.tensors.filter((name) =>
    trace.accesses.some((one) => one.tensor === name && one.kind === "load"),
  );
  const step = trace.band * cell + 24;
  const blocks = loads.map((name, at) => ({
    one: mine.findLast((one) => one.tensor === name),
    top: y + 34 + at * step,
  }));
  blocks.push({ one: now?.kind === "store" ? mine.at(-1) : undefined, top: y + 34 + loads.length * step });
  const drawn = blocks.map(
    ({ one, top }) =>
      one && [
        label(x, top - 9, one.kind === "load" ? one.value : `stored: ${one.value}`, { size: 12 }),
        Array.from({ length: trace.band * trace.width }, (_, lane) =>
          register({ trace, one, lane, x, y: top, cell, home: place(one) }),
        ),
      ],
  );
  const bottom = y + 34 + (loads.length + 1) * step;
  const look = { fill: "var(--fast)", "fill-opacity": 0.1, stroke: "var(--fast)", "stroke-width": 2 };
  const box = h("rect", { x: 0, y, width, height: bottom - y - 10, rx: 3, ...look });
  const title = now ? `in the registers of program ${now.program}` : "registers: no program runs";
  const nodes = [box, label(0, y - 12, title, { weight: 600 }), drawn];
  return { nodes, spot: { x, y: blocks.at(-1).top }, bottom };
}

// One lane with its number, which comes from the tensor; a masked one has none. home: where the block is in its tensor.
function register({ trace, one, lane, x, y, cell, home }) {
  const [row, column] = [Math.floor(lane / trace.width), lane % trace.width];
  const masked = one.columns[0] + column >= one.columns[1] || one.rows[0] + row >= one.rows[1];
  const [across, down] = [column * cell, row * cell];
  const size = { x: x + across, y: y + down, width: cell - 1, height: cell - 1 };
  const [loads, code] = [one.kind === "load", trace.source[one.ran.at(-1)].trim()];
  const [key, title] = [
    `${one.kind} ${one.tensor} ${one.at} ${lane}`,
    `lane ${column}: column ${one.columns[0] + column}`,
  ];
  if (!masked) {
    const letter = one.numbers[row][column];
    const from = loads ? { x: home.x + across, y: home.y + down } : undefined;
    return tile({
      key,
      ...size,
      name: loads ? LOAD : STORE,
      letter,
      tip: { title, lines: [one.value, letter], code },
      from,
    });
  }
  const other = loads && code.includes("inf");
  const held = other ? "masked: not read, holds −∞" : "masked: not read, holds nothing that counts";
  return h(
    "g",
    { key, tip: { title, lines: [loads ? held : "masked: not stored"], code } },
    slot({ ...size, dash: true }),
    cell >= 20 &&
      label(size.x + cell / 2, size.y + cell / 2, other ? "−∞" : "×", {
        anchor: "middle",
        size: 12,
        fill: "var(--grey)",
      }),
  );
}

// What each line does, and how often it has run.
function tipsOf(trace, done) {
  const times = (accesses) =>
    accesses.flatMap((one) => one.ran).reduce((sum, number) => sum.set(number, (sum.get(number) ?? 0) + 1), new Map());
  const [all, ran] = [times(trace.accesses), times(done)];
  const moves = new Map(
    trace.accesses.map((one) => [one.ran.at(-1), `${one.kind}s ${one.kind === "load" ? "from" : "to"} ${one.tensor}`]),
  );
  const tips = {};
  for (const [number, count] of all) {
    const [, name] = trace.source[number].match(/^ *(\w+) =/) ?? [];
    tips[number] = {
      title: moves.get(number) ?? (name ? `computes ${name}` : "the head of a loop"),
      lines: [`has run ${ran.get(number) ?? 0} of ${count} times, all programs together`],
    };
  }
  return tips;
}
