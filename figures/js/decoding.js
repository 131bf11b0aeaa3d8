// A lane per SM, filled by the programs that it runs: areas are work. The merge is below the lanes.

import { h } from "./svg.js";
import { digits, grouped, times } from "./words.js";
import { nearest } from "./state.js";
import { at, boxes, label, rule, ruler, spot } from "./marks.js";

const LANES = 190; // height of the lanes
const MERGE = 96; // height of the weights

const micro = (us) => `${grouped(Number(us.toPrecision(3)))} µs`;
// The number of the part, one of ``before`` parts, in which part ``it`` of ``now`` parts begins.
const parent = (it, before, now) => Math.floor((it * before) / now);

export function draw({ trace, step, width }) {
  const now = trace.parts[step];
  const before = trace.parts[Math.max(step - 1, 0)];
  const merge = 26 + LANES + 104;
  const axis = merge + MERGE + 56;
  return {
    height: axis + 36 + 30,
    nodes: [
      h("g", { key: "lanes" }, lanes({ trace, before, now, y: 26, width })),
      h("g", { key: "merge" }, weights({ trace, before, now, y: merge, width })),
      h("g", { key: "ruler" }, numbers({ trace, now, y: axis, width })),
    ],
  };
}

// Time goes down. All numbers of parts have one scale: the room below the dashes is what a split saves.
function lanes({ trace, before, now, y, width }) {
  const longest = Math.max(...trace.parts.map((part) => part.waves * part.keys));
  const unit = LANES / longest; // height of a key
  const high = now.keys * unit; // height of one program
  const ended = (one) => one.waves * one.keys * unit;
  const none = trace.sms - now.busiest;
  const below = ended(now) - (high < 24 ? 0 : high) + 14; // of the words: in the last wave, or below it if its height is too small
  const idle = below < LANES && width - (now.busiest * width) / trace.sms > 150;
  return [
    label(0, 8, `${times(now.programs, "program")} on ${trace.sms} SMs, ${times(now.waves, "wave")}`, {
      weight: 650,
      size: 15,
    }),
    columns({ sms: trace.sms, now, high, y, width }),
    now.waves <= 12 &&
      Array.from({ length: now.waves - 1 }, (_, wave) =>
        rule(0, width, y + (wave + 1) * high, { color: "var(--paper)", key: `wave ${wave}` }),
      ),
    ending({ now, y: y + ended(now), width }),
    ended(now) < LANES - 44 && [
      h(
        "g",
        { key: "time", class: "mark", style: at(6, y + ended(now)), from: { style: at(6, y + ended(before)) } },
        label(0, 14, micro(now.us), { weight: 600 }),
      ),
      label(6, y + LANES - 12, `in one part: ${micro(trace.parts[0].us)}`, { fill: "var(--grey)" }),
    ],
    idle &&
      label(width - 6, y + below, now.waves > 1 ? `${none} idle in the last wave` : `${none} idle`, {
        anchor: "end",
        fill: "var(--grey)",
      }),
    label(0, y + LANES + 20, `${micro(now.us)}: ${Math.round(100 * now.share)}% of the SMs' time is used`, {
      weight: 600,
    }),
    label(0, y + LANES + 40, `${now.kv} of keys and values, ${now.parts} for parts`, { size: 12 }),
    label(0, y + LANES + 58, "a column per SM; time runs down to the dashes", { size: 12, fill: "var(--grey)" }),
  ];
}

// A column per SM, as long as its programs take. Equal columns are one box behind the gaps, so that fewer boxes move.
function columns({ sms, now, high, y, width }) {
  const lane = width / sms;
  const each = `${grouped(now.keys)} keys each, for all query heads of a group`;
  const work = (name, first, end, programs) => {
    const box = { x: first * lane, y, width: (end - first) * lane, height: programs * high };
    return h("rect", { key: name, ...box, fill: "var(--K)", class: "grow" });
  };
  const all = Array.from({ length: sms }, (_, sm) => sm);
  return [
    h("rect", { key: "ground", x: 0, y, width, height: LANES, fill: "var(--pale)", "fill-opacity": 0.45 }),
    work("all waves", 0, now.busiest, now.waves),
    work("one wave less", now.busiest, sms, now.waves - 1),
    h("path", {
      key: "gaps",
      d: all.map((sm) => `M${(sm * lane).toFixed(2)} ${y}v${LANES}`).join(""),
      stroke: "var(--paper)",
      "stroke-width": 0.16 * lane,
    }),
    all.map((sm) => {
      const programs = sm < now.busiest ? now.waves : now.waves - 1;
      const tip = {
        title: `SM ${sm}: ${times(programs, "program")}`,
        lines: [programs ? each : "it has nothing to do"],
      };
      return spot(`sm ${sm}`, { x: sm * lane, y, width: lane, height: LANES }, tip);
    }),
  ];
}

// The dashes at which the last program ends.
function ending({ now, y, width }) {
  const lines = [
    `${now.kv} of keys and values, ${now.parts} for parts`,
    "each SM reads at an even share of the bandwidth",
  ];
  return h(
    "g",
    { key: "end", class: "mark", style: at(0, y), tip: { title: micro(now.us), lines } },
    h("rect", { x: 0, y: -5, width, height: 10, fill: "transparent" }),
    rule(0, width, 0, { dash: true }),
  );
}

// One row of a real text: a bar per part, as wide as its share of the keys and as high as its weight.
function weights({ trace, before, now, y, width }) {
  const scale = (one) => MERGE / one.heaviest / 1.3; // the same scale for both bases
  const placed = (one, s) => boxOf({ one, s, per: scale(one), bottom: y + MERGE, width });
  const parts = now.weights.map((_, s) => placed(now, s));
  const origins = parts.map((_, s) => placed(before, parent(s, before.weights.length, now.weights.length)));
  // The bars of all parts as one element, which is animated faster than one element for each.
  const bars = (what, look) => {
    const pathOf = (places, about) =>
      boxes(
        `${what} ${now.S}`,
        places.map((one) => one[what]),
        about,
      );
    return pathOf(parts, { ...look, class: "grow", from: { d: pathOf(origins).attributes.d } });
  };
  const title = trace.wrong ? "what the parts weigh: lse of the wrong base" : "what the parts weigh in the merge";
  const about = trace.wrong
    ? "512 keys of a real text; outlined: the right weights"
    : "one row of a real text, 512 keys, in as many parts";
  return [
    label(0, y - 18, title, { weight: 650, fill: trace.wrong ? "var(--wrong)" : "var(--ink)" }),
    h("rect", { key: "ground", x: 0, y, width, height: MERGE, fill: "var(--pale)", "fill-opacity": 0.45 }),
    bars("weight", { fill: trace.wrong ? "var(--wrong)" : "var(--P)" }),
    trace.wrong && bars("right", { fill: "none", stroke: "var(--ink)" }),
    parts.map((one, s) => partOf({ trace, now, s, y, ...one })),
    label(0, y + MERGE + 16, about, { size: 12, fill: "var(--grey)" }),
  ];
}

// The places of part s: its bar, the outline of its right weight, and its words, inside. per: pixels per weight.
function boxOf({ one, s, per, bottom, width }) {
  const wide = width / one.weights.length;
  const gap = Math.min(2, wide * 0.1);
  const box = (weight) => ({
    x: s * wide + gap,
    y: bottom - per * weight,
    width: wide - 2 * gap,
    height: Math.max(per * weight, 0.01), // a box without height would be left out, and others would take its bar
  });
  const [weight, right] = [one.weights[s], one.right[s]];
  const words = {
    x: Math.min(Math.max((s + 0.5) * wide, 20), width - 20),
    y: bottom - per * Math.max(weight, right) - 9,
  };
  return { wide, weight: box(weight), right: box(right), words };
}

// The place to point at a part. Its weight is written where it fits, and always on the heaviest part.
function partOf({ trace, now, s, y, wide, words }) {
  const weight = now.weights[s];
  const tip = {
    title: `part ${s + 1} of ${now.weights.length}: ${digits(100 * weight, 3)}%`,
    lines: [
      trace.wrong
        ? `logarithms of base 2, merged as natural ones; right: ${digits(100 * now.right[s], 3)}%`
        : "e to the power of its lse minus that of the whole",
    ],
    code: trace.code,
  };
  const labelled = wide > 44 || s === now.weights.indexOf(Math.max(...now.weights));
  return h(
    "g",
    { key: `part ${s}`, tip },
    h("rect", { x: s * wide, y, width: wide, height: MERGE, fill: "transparent" }),
    labelled && label(words.x, words.y, `${digits(100 * weight, 2)}%`, { size: 12, anchor: "middle" }),
  );
}

function numbers({ trace, now, y, width }) {
  const all = trace.parts.map(({ S }) => S);
  const place = (S) => Math.log2(S) / Math.log2(all.at(-1));
  const shown = Math.min(trace.rule, all.at(-1));
  const spans = [
    {
      words: `the rule: ${times(trace.rule, "part")}${trace.rule > shown ? " →" : ""}`,
      color: "var(--fast)",
      start: 0,
      stop: place(shown),
      tip: {
        title: `the rule takes ${times(trace.rule, "part")}`,
        lines: ["the fewest that use 95% of the best share of the SMs' time"],
      },
    },
  ];
  const ticks = [1, 2, 4, 8, 16, 32, 64].map((S) => ({ at: place(S), words: String(S) }));
  const wanted = (x) => 2 ** ((x / width) * Math.log2(all.at(-1)));
  const drag = {
    field: "step",
    name: "parts of the keys",
    to: ({ x }) => ({ step: all.indexOf(nearest(all, wanted(x))) }),
  };
  return [
    ruler({
      key: "parts",
      x: 0,
      y,
      width,
      spans,
      ticks,
      handle: {
        at: place(now.S),
        drag,
        tip: { title: times(now.S, "part"), lines: ["pull, or use the arrow keys"] },
      },
    }),
  ];
}
