// The pure functions of the page, in node: node --test tests/figures/js
import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";
import { h, markup, textOf } from "../../../figures/js/svg.js";
import { ahead, events, moved, schedule, until } from "../../../figures/js/clock.js";
import { turned } from "../../../figures/js/hands.js";
import { fromHash, keyOf, nearest, python, toHash, unpacked } from "../../../figures/js/state.js";
import { amount, digits, fits, pieces, room, times, wrapped } from "../../../figures/js/words.js";

const controls = [
  { field: "step", kind: "clock", label: "step" },
  { field: "N", kind: "slide", label: "tokens", values: [64, 128] },
  { field: "source", kind: "choose", label: "scores", values: ["real", "masked start"] },
  { field: "causal", kind: "toggle", label: "causal", values: [false, true] },
];
const state = { step: 3, N: 128, source: "masked start", causal: true };

test("the key of a state has all fields but the clock", () => {
  assert.equal(keyOf(controls, state), '[128,"masked start",true]');
  assert.equal(keyOf(controls, { ...state, step: 9 }), keyOf(controls, state));
});

test("packed numbers are JSON by key", async () => {
  const lines = { '[64,"a b"]': '{"words":["0 B, −∞"]}', "[128]": "{}" };
  const text = Object.entries(lines).map((line) => line.join("\t"));
  assert.deepEqual(await unpacked(deflateSync(text.join("\n")).toString("base64")), lines);
});

test("a sentence is split into words, and numbers that belong to controls", () => {
  assert.deepEqual(pieces("[128 × 128](step) on a T4, [d = 64](d)."), [
    ["128 × 128", "step"],
    [" on a T4, ", undefined],
    ["d = 64", "d"],
    [".", undefined],
  ]);
  assert.deepEqual(pieces("No [number] (here)."), [["No [number] (here).", undefined]]);
});

const words = (count, marks) =>
  Array.from({ length: count }, (_, step) => marks[step] ?? `Step ${step}, 1${step % 7} kB.`);

test("an event is a step whose words differ not only in numbers", () => {
  assert.deepEqual(
    [...events(["0 B.", "1.5 kB.", "Done after 2 MB.", "3.2e−5 GB.", "Done after 4 MB."]).values()],
    [0, 2],
  );
  assert.deepEqual([...events(["K₃ comes in 1 µs.", "K₂ comes in −2 ms.", "V₂ comes in 1.2 h."]).values()], [0, 2]);
});

test("a short clock shows each step for a second, a long one takes 12 seconds and shows each event for a second", () => {
  assert.deepEqual(
    schedule(words(7, {})).map(({ ms }) => ms),
    Array(7).fill(1000),
  );
  const plan = schedule(words(2000, { 700: "The first is done." }));
  assert.deepEqual([plan[700].ms, plan[0].ms], [1000, 1000]);
  assert.ok(Math.abs(plan.reduce((sum, { ms }) => sum + ms, 0) - 12_000) < 1e-6);
});

test("steps in which nothing happens share a picture, and no event is left out", () => {
  const plan = schedule(words(2000, { 700: "The first is done." }));
  const seen = [0];
  while (seen.at(-1) < 1999) seen.push(ahead(plan, seen.at(-1), 1).next);
  assert.ok(seen.includes(700) && seen.length < 350);
});

test("after a change the clock keeps its step, or its place between the same two events", () => {
  const from = words(101, { 50: "Half is done." });
  const to = words(201, { 150: "Half is done." });
  assert.deepEqual(
    [0, 25, 50, 75, 100].map((step) => moved(step, from, to)),
    [0, 75, 150, 175, 200],
  );
  assert.deepEqual(
    [0, 150, 200].map((step) => moved(step, to, from)),
    [0, 50, 100],
  );
  assert.equal(moved(30, from, words(101, { 70: "Half is done." })), 30);
  assert.equal(moved(50, from, words(41, {})), 20);
  assert.equal(moved(300, from, from), 100);
});

test("at a time, a clock with times shows the last step that is not later", () => {
  const times = [0, 40, 40, 90];
  assert.deepEqual(
    [0, 39, 40, 89, 90, 500].map((time) => until(time, times)),
    [0, 0, 2, 2, 3, 3],
  );
});

test("a link restores the state, but no value that the controls do not offer", () => {
  assert.deepEqual(fromHash("tiling", controls, toHash("tiling", state)), state);
  assert.deepEqual(fromHash("tiling", controls, "#tiling?N=77&step=x&colour=red&causal=false"), { causal: false });
  assert.deepEqual(fromHash("tiling", controls, toHash("roofline", state)), {});
  assert.deepEqual(fromHash("tiling", controls, ""), {});
});

test("the line of Python shows the state", () => {
  assert.equal(
    python("tiling", state),
    'figures.tiling.explore(figures.tiling.State(step=3, N=128, source="masked start", causal=True))',
  );
});

test("a dragged mark snaps to the nearest value", () => {
  assert.equal(nearest([16, 32, 64], 47), 32);
  assert.equal(nearest([16, 32, 64], 1000), 64);
});

test("keys turn a handle by one value, in the direction in which it moves", () => {
  const values = [16, 32, 64];
  const [right, left, up, down] = ["ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown"];
  assert.deepEqual(
    [right, left, up, down].map((key) => turned({}, key, values, 32)),
    [64, 16, 64, 16],
  );
  assert.deepEqual(
    [right, down].map((key) => turned({ grows: [-1, 1] }, key, values, 32)),
    [16, 64],
  );
  assert.deepEqual(
    [right, left].map((key) => turned({}, key, values, 40)),
    [64, 32],
  );
  assert.deepEqual(
    ["Home", "End", "Tab"].map((key) => turned({}, key, values, 32)),
    [16, 64, undefined],
  );
  assert.equal(turned({}, right, ["0", "1/16"], "1/16"), "1/16");
});

test("numbers are written as the kernel writes them", () => {
  assert.deepEqual([999, 1000, 328_000, 1.18e6, 40.3e9].map(amount), ["999 B", "1 kB", "328 kB", "1.18 MB", "40.3 GB"]);
  assert.deepEqual(
    [20_582, 163 * 1024, 40 * 2 ** 20].map((bytes) => room(bytes)),
    ["20.1 KiB", "163 KiB", "40 MiB"],
  );
  assert.deepEqual(
    [40 * 2 ** 30, 2 ** 40].map((bytes) => room(bytes)),
    ["40 GiB", "1 TiB"],
  );
  assert.equal(room(20.25 * 2 ** 20, 4), "20.25 MiB");
  assert.deepEqual(
    [0.2056214, -0.5, null, 0, 2].map((value) => digits(value)),
    ["0.2056", "−0.5", "−∞", "0", "2"],
  );
  assert.deepEqual(
    [1, 2000].map((count) => times(count)),
    ["1 time", "2,000 times"],
  );
  assert.ok(fits("Q", 12, 13) && !fits("queries", 12, 13));
});

test("a text is wrapped between words and keeps all of them", () => {
  assert.deepEqual(wrapped("one two three", 60, 13), ["one two", "three"]);
  assert.deepEqual(wrapped("incomprehensible", 20, 13), ["incomprehensible"]);
});

test("markup escapes texts, and leaves out fields that are no attributes", () => {
  const node = h(
    "g",
    {
      key: "a",
      drag: { field: "step", to: () => ({}) },
      x: 1,
      fill: undefined,
      tip: { title: 'a "<b>"', lines: ["c"] },
    },
    null,
    false,
    ["1 < 2"],
  );
  assert.equal(
    markup(node),
    '<g x="1" data-tip="" role="img" tabindex="-1" aria-label="a &quot;&lt;b>&quot;. c" data-drag="">1 &lt; 2</g>',
  );
  assert.equal(textOf({ title: "K", code: "K_j = load()" }), "K. K_j = load()");
});
