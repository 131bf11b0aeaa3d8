// Sixteen rows of a tile, twice: the thread that holds each number in a register, and its bank in shared memory.

import { h } from "./svg.js";
import { fits, times, wrapped } from "./words.js";
import { WIDE, at, label, lines } from "./marks.js";

const SIZE = 64; // rows and columns of the tile
const SHOWN = 16; // rows, and columns of registers
const PIECE = 8; // columns in 16 bytes
const BANKS = 32;
const WARP = 32;
const ROW = 22;
const LEFT = 24; // room for the numbers of rows
const TOP = 66; // above the rows: titles
const BARS = 44; // height of the bars of banks

export function draw({ trace, step, width }) {
  const wide = width >= WIDE;
  const size = wide ? (width - 28) / 2 : width;
  const held = holders(trace);
  const [row, column] = place(trace, step, trace.register);
  const scene = {
    trace,
    held,
    lanes: 128 / trace.banks.length,
    current: { thread: step, row, column },
    first: { row: row - (row % SHOWN), column: column - (column % SHOWN) },
    run: Math.floor(trace.register / trace.together),
  };
  const registers = registersOf({ ...scene, x: 0, y: 0, width: size });
  const [x, y] = wide ? [size + 28, 0] : [0, registers.bottom + 28];
  const banks = banksOf({ ...scene, x, y, width: size });
  return { height: Math.max(registers.bottom, banks.bottom), nodes: [registers.nodes, banks.nodes] };
}

// Both layouts are linear: one place per bit of a number, combined by XOR.
const combined = (places, number) => places.reduce((sum, one, bit) => ((number >> bit) & 1 ? sum ^ one : sum), 0);
const part = (places, axis) => places.map((one) => one[axis]);

// The row and column of the number in a register of a thread.
const place = ({ of_thread, of_register }, thread, register) =>
  [0, 1].map((axis) => combined(part(of_thread, axis), thread) ^ combined(part(of_register, axis), register));

// The offset of a number in shared memory, counted in numbers.
const offset = ({ offset_of_row, offset_of_column }, row, column) =>
  combined(offset_of_row, row) ^ combined(offset_of_column, column);

// The thread and register of each number of the tile, row after row.
function holders(trace) {
  const threads = Array.from({ length: 128 }, (_, thread) => place(trace, thread, 0));
  const registers = Array.from({ length: 32 }, (_, register) => place(trace, 0, register));
  const held = [];
  threads.forEach(([row, column], thread) => {
    registers.forEach(([down, across], register) => {
      held[(row ^ down) * SIZE + (column ^ across)] = { thread, register };
    });
  });
  return held;
}

// Whether a number moves together with that of the current register.
const moved = ({ trace, lanes, current, run }, { thread, register }) =>
  Math.floor(thread / lanes) === Math.floor(current.thread / lanes) && Math.floor(register / trace.together) === run;

const lane = (thread) => `lane ${thread % WARP} of warp ${Math.floor(thread / WARP)}`;
const range = (start, count) => `${start}–${start + count - 1}`;
const rowsOf = ({ row }) => `rows ${range(row, SHOWN)} of ${SIZE}`;
const indices = (count) => Array.from({ length: count }, (_, index) => index);
const above = (x, y, words) => label(x, y, words, { size: 12, anchor: "middle", fill: "var(--grey)" });
const beside = (row, x, y) =>
  label(x + LEFT - 6, y + ROW / 2, row, { key: `row ${row}`, size: 12, anchor: "end", fill: "var(--grey)" });

function registersOf(scene) {
  const { trace, lanes, held, current, first, x, y, width } = scene;
  const { together, register } = trace;
  const unit = (width - LEFT) / SHOWN;
  const top = y + TOP;
  const holder = (row, column) => held[row * SIZE + column];
  const to = (point) => {
    const inside = (value) => Math.min(Math.max(Math.floor(value), 0), SHOWN - 1);
    const [row, column] = [inside((point.y - top) / ROW), inside((point.x - x - LEFT) / unit)];
    return { step: holder(first.row + row, first.column + column).thread };
  };
  const cells = indices(SHOWN).flatMap((down) =>
    indices(SHOWN / together).map((run) => {
      const [row, column] = [first.row + down, first.column + run * together];
      return { ...holder(row, column), row, column, x: x + LEFT + run * together * unit, y: top + down * ROW };
    }),
  );
  const own = { x: x + LEFT + (current.column - first.column) * unit, y: top + (current.row - first.row) * ROW };
  const below = top + SHOWN * ROW;
  const lit = new Set(cells.filter((cell) => moved(scene, cell)).map(({ thread }) => thread)).size;
  const filled = `filled: what moves at once, of ${lit} of ${lanes} lanes in this window`;
  const notes = wrapped(`above: columns, beside: rows; outlined: all of this thread; ${filled}`, width, 12);
  const nodes = h(
    "g",
    { key: "registers", class: "compared" },
    label(x, y + 8, "registers: whose numbers?", { weight: 650, size: 15 }),
    label(x, y + 30, `${rowsOf(first)}, columns ${range(first.column, SHOWN)} of ${SIZE}`, { fill: "var(--grey)" }),
    indices(SHOWN / 2).map((pair) =>
      above(x + LEFT + (2 * pair + 1) * unit, top - 12, range(first.column + 2 * pair, 2)),
    ),
    indices(SHOWN).map((row) => beside(first.row + row, x, top + row * ROW)),
    cells.map((cell) => cellOf(scene, cell, { unit, to })),
    cells
      .filter((cell) => cell.thread === current.thread)
      .map((cell) => outline({ ...cell, width: together * unit, key: `outline ${cell.register}` })),
    handleOf({ current, register, ...own, unit, to }),
    label(x, below + 22, `thread ${current.thread}: ${lane(current.thread)}`, { weight: 600 }),
    label(x, below + 42, `register ${register}: row ${current.row}, column ${current.column} (thick line)`),
    lines(x, below + 64, notes, { size: 12, fill: "var(--grey)" }),
  );
  return { nodes, bottom: below + 62 + 17 * notes.length };
}

function cellOf(scene, { thread, register, row, column, x, y }, { unit, to }) {
  const { trace } = scene;
  const width = trace.together * unit;
  const filled = moved(scene, { thread, register });
  const tip = {
    title: `thread ${thread}, registers ${range(register, trace.together)}`,
    lines: [`row ${row}, columns ${range(column, trace.together)}`, lane(thread)],
    code: trace.code,
  };
  return cell(`${row} ${column}`, { x, y, width }, filled, thread, { drag: { field: "step", to }, tip });
}

// A cell of a table and its words, without a group around them, which would take longer to draw.
const cell = (key, { x, y, width }, filled, words, hand) => [
  h("rect", {
    key: `cell ${key}`,
    x,
    y,
    width,
    height: ROW,
    fill: "var(--P)",
    "fill-opacity": filled ? 1 : 0.25,
    stroke: "var(--paper)",
    ...hand,
  }),
  label(x + width / 2, y + ROW / 2, words, {
    key: `words ${key}`,
    anchor: "middle",
    fill: filled ? "var(--on-P)" : "var(--ink)",
  }),
];

// The outline around a cell of the current thread, drawn over the neighbours.
const outline = ({ key, x, y, width }) =>
  h(
    "g",
    { key, class: "mark", style: at(x, y), "pointer-events": "none" },
    h("rect", { width, height: ROW, fill: "none", stroke: "var(--ink)", "stroke-width": 2.5 }),
  );

// The number of the current register, to pull.
function handleOf({ current, register, x, y, unit, to }) {
  const wide = Math.max(unit, 24);
  return h(
    "g",
    {
      key: "handle",
      class: "mark",
      style: at(x, y),
      drag: { field: "step", name: "thread", to },
      tip: { title: `thread ${current.thread}, register ${register}`, lines: ["pull, or use the arrow keys"] },
    },
    h("rect", { x: (unit - wide) / 2, y: -1, width: wide, height: ROW + 2, fill: "transparent" }),
    h("rect", { y: ROW - 5, width: unit, height: 5, fill: "var(--ink)" }),
  );
}

function banksOf(scene) {
  const { trace, lanes, current, first, x, y, width } = scene;
  const unit = (width - LEFT) / PIECE;
  const top = y + TOP;
  const below = top + SHOWN * ROW;
  const counts = trace.banks[Math.floor(current.thread / lanes)];
  const turns = Math.max(...counts);
  const used = counts.filter((count) => count > 0).length;
  const own = current.column - (current.column % PIECE);
  const pieces = indices(SHOWN).flatMap((down) =>
    indices(PIECE).map((piece) => {
      const [row, column] = [first.row + down, piece * PIECE];
      const line = (offset(trace, row, column) - offset(trace, first.row, 0)) * 2; // in bytes
      const bank = Math.floor((line % 128) / 4);
      return { row, column, bank, x: x + LEFT + (bank / 4) * unit, y: top + Math.floor(line / 128) * ROW };
    }),
  );
  const end = `${times(turns, "turn")}${turns > 1 ? " instead of 1" : ""}`;
  const cells = "above: banks; in a piece of 16 bytes: its columns";
  const moves = `bars: ${lanes} lanes move ${BANKS} words, in ${used} of ${BANKS} banks; a bank serves one in a turn`;
  const notes = [...wrapped(cells, width, 12), ...wrapped(moves, width, 12)];
  const nodes = h(
    "g",
    { key: "banks", class: "compared" },
    label(x, y + 8, "shared memory: which bank?", { weight: 650, size: 15 }),
    label(x, y + 30, `${rowsOf(first)}, all columns`, { fill: "var(--grey)" }),
    indices(PIECE).map((at) => above(x + LEFT + (at + 0.5) * unit, top - 12, range(4 * at, 4))),
    indices(SHOWN).map((row) => beside(first.row + row, x, top + row * ROW)),
    pieces.map((piece) => pieceOf(scene, piece, unit)),
    outline({ key: "own", width: unit, ...pieces.find(({ row, column }) => row === current.row && column === own) }),
    counts.map((count, bank) =>
      barOf({ count, bank, turns, x: x + LEFT + (bank * unit) / 4, y: below + 8, width: unit / 4 }),
    ),
    label(x, below + BARS + 26, end, { weight: 600, fill: turns > 1 ? "var(--wrong)" : "var(--ink)" }),
    lines(x, below + BARS + 48, notes, { size: 12, fill: "var(--grey)" }),
  );
  return { nodes, bottom: below + BARS + 46 + 17 * notes.length };
}

// 16 bytes of a row, at their place in shared memory.
function pieceOf(scene, { row, column, bank, x, y }, unit) {
  const { trace, held } = scene;
  const numbers = indices(PIECE).map((next) => held[row * SIZE + column + next]);
  const words = range(column, PIECE);
  const filled = numbers.some((number) => moved(scene, number));
  return cell(`${row} ${column}`, { x, y, width: unit }, filled, fits(words, unit - 3, 13) ? words : column, {
    class: "spot",
    tip: {
      title: `row ${row}, columns ${words}: banks ${range(bank, 4)}`,
      lines: [`of ${numbers[0].thread === numbers[7].thread ? "thread" : "threads"} ${threads(numbers)}`],
      code: trace.shared,
    },
  });
}

const threads = (numbers) => [...new Set(numbers.map(({ thread }) => thread))].join(", ");

function barOf({ count, bank, turns, x, y, width }) {
  const tip = { title: `bank ${bank}: ${times(count, "word")}`, lines: [`the whole takes ${times(turns, "turn")}`] };
  const box = { x: x + 1, y, width: width - 2 };
  return [
    h("rect", {
      key: `bank ${bank}`,
      ...box,
      height: BARS,
      fill: "var(--pale)",
      "fill-opacity": 0.4,
      class: "spot",
      tip,
    }),
    h("rect", {
      key: `words of ${bank}`,
      ...box,
      height: (count * BARS) / 8,
      fill: count > 1 ? "var(--wrong)" : "var(--fast)",
      class: "grow",
      "pointer-events": "none",
    }),
  ];
}
