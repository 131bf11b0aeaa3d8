// A kernel's source with the line that runs, the programs, the tensors that they touch, and what one program holds.

import { h } from "./svg.js";
import { WIDE, label, slot, source, tile } from "./marks.js";

const LEFT = 20; // the left edge of the tensors
const CELL = 26; // the largest size of a cell
const LEAST = 21.5; // the smallest, with room for .25
const CODE = 385; // width of the source, at least: few of its lines are folded
const LOAD = "Q";
const STORE = "O";

export function draw({ trace, step, width }) {
  const wide = width >= WIDE;
  const across = wide ? Math.min(Math.max(width * 0.44, LEFT + 16 * LEAST), width - 24 - CODE) : width;
  const code = { x: wide ? across + 24 : 0, width: wide ? width - across - 24 : width };
  const names = Object.keys(trace.tensors);
  const columns = Math.ceil(trace.N / trace.width) * trace.width;
  const cell = Math.min(CELL, (across - LEFT) / columns);
  const done = trace.accesses.slice(0, step);
  const now = done.at(-1);
  const high = trace.height * cell;
  const first = trace.height > 1 ? 62 : 84; // programs of rows are beside the rows, programs of columns above them
  const tops = Object.fromEntries(names.map((name, at) => [name, first + at * (high + 26)]));
  const bottom = first + names.length * (high + 26) + 18;
  const place = (one) => ({ x: LEFT + one.columns[0] * cell, y: tops[one.tensor] + one.rows[0] * cell });
  const held = registers({ trace, done, now, cell, x: LEFT, y: bottom, width: across, place });
  const top = wide ? 30 : held.bottom + 86;
  const text = source(code.x, top, trace.source, {
    width: code.width,
    lit: now?.ran.at(-1),
    ran: now?.ran,
    tips: tipsOf(trace, done),
    key: "line",
  });
  return {
    height: Math.max(held.bottom + 46, top + text.height + 4),
    nodes: [
      h("g", { key: "programs" }, programsOf({ trace, step, now, cell, tops: Object.values(tops) })),
      h("g", { key: "registers" }, held.nodes),
      names.map((name) => tensor({ trace, done, name, columns, cell, y: tops[name], spot: held.spot })),
      label(LEFT, held.bottom + 10, `loaded ${now?.loaded ?? 0} B, stored ${now?.stored ?? 0} B`, {
        key: "bytes",
        weight: 600,
      }),
      label(LEFT, held.bottom + 32, "blue: loaded, red: stored; strong: in this step", {
        key: "meaning",
        fill: "var(--grey)",
        size: 12,
      }),
      label(code.x, top - 20, "bar: runs in this step; lit: moves something", { fill: "var(--grey)" }),
      h("g", { key: "source" }, text.nodes),
    ],
  };
}

// The programs, each at its columns or rows: a press on one moves the clock to its beginning.
function programsOf({ trace, step, now, cell, tops }) {
  const boxes = Array.from({ length: trace.programs }, (_, program) => {
    const mine = trace.accesses.map((one, at) => ({ ...one, at })).filter((one) => one.program === program);
    const state = now?.program === program ? "at work" : mine.at(-1).at < step ? "has ended" : "has not begun";
    const { rows, columns } = mine[0];
    const has = trace.height > 1 ? `rows ${span(rows)}` : `columns ${span(columns)}`;
    const places =
      trace.height > 1
        ? tops.map((top) => ({ x: 0, y: top + rows[0] * cell, width: 15, height: (rows[1] - rows[0]) * cell - 1 }))
        : [{ x: LEFT + columns[0] * cell, y: 22, width: trace.width * cell - 1, height: 26 }];
    const look = {
      rx: 4,
      fill: state === "at work" ? "var(--fast)" : state === "has ended" ? "var(--pale)" : "var(--paper)",
      stroke: "var(--grey)",
    };
    return h(
      "g",
      {
        key: `program ${program}`,
        tip: {
          title: `program ${program} ${state}`,
          lines: [has, `${mine.length} loads and stores`],
        },
        drag: { field: "step", to: () => ({ step: mine[0].at + 1 }) },
      },
      places.map(({ x, y, width, height }) => [
        h("rect", { x, y, width, height, ...look }),
        label(x + width / 2, y + height / 2, String(program), {
          anchor: "middle",
          weight: state === "at work" ? 700 : undefined,
          fill: state === "at work" ? "var(--on-fast)" : "var(--ink)",
        }),
      ]),
    );
  });
  return [label(LEFT, 10, "one kernel, many programs", { fill: "var(--grey)" }), boxes];
}

const span = ([start, stop]) => (stop - start === 1 ? `${start}` : `${start} to ${stop - 1}`);

// The elements of a tensor with their numbers, and empty places past its end.
function tensor({ trace, done, name, columns, cell, y, spot }) {
  const places = Array.from({ length: trace.height * columns }, (_, at) => [Math.floor(at / columns), at % columns]);
  const end = LEFT + trace.N * cell - 0.5;
  return h(
    "g",
    { key: `tensor ${name}` },
    label(trace.height > 1 ? LEFT : 0, trace.height > 1 ? y - 12 : y + cell / 2, name, { weight: 650, size: 15 }),
    places.map(([row, column]) => {
      const size = { x: LEFT + column * cell, y: y + row * cell, width: cell - 1, height: cell - 1 };
      if (column < trace.N) return element({ trace, done, name, row, column, size, spot });
      const lines = [`column ${column} of ${trace.N}: the mask keeps every program out`];
      const tip = { title: `past the end of ${name}`, lines };
      return slot({ key: `${name} ${row} ${column}`, ...size, dash: true, tip });
    }),
    h("path", { d: `M${end} ${y - 5}V${y + trace.height * cell + 4}`, stroke: "var(--ink)", "stroke-width": 2 }),
    name === "x" &&
      label(Math.max(end, LEFT + 54), y - 12, `N = ${trace.N}`, { anchor: "end", size: 12, fill: "var(--grey)" }),
  );
}

// One element with its number. An element that is stored moves in from the registers.
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
    letter: stored || inputs(trace).includes(name) ? trace.tensors[name][row][column] : undefined,
    size: 12,
    tip: { title, lines, code: last && trace.source[last.ran.at(-1)].trim() },
    from: stored && spot ? { x: spot.x + across.x, y: spot.y + across.y } : undefined,
  });
}

const inputs = (trace) => Object.keys(trace.tensors).slice(0, -1);
const inside = (at, [start, stop]) => start <= at && at < stop;

// The blocks in the registers of the program at work, at their whole width, with masked lanes.
function registers({ trace, done, now, cell, x, y, width, place }) {
  const mine = now ? done.map((one, at) => ({ ...one, at })).filter((one) => one.program === now.program) : [];
  const loads = inputs(trace);
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

// One lane with its number, which moves in from the tensor; a masked lane has none. home: the block in its tensor.
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
    const letter = trace.tensors[one.tensor][one.rows[0] + row][one.columns[0] + column];
    const from = loads ? { x: home.x + across, y: home.y + down } : undefined;
    return tile({
      key,
      ...size,
      name: loads ? LOAD : STORE,
      letter,
      size: 12,
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
