// A lane per SM, filled by the programs that it runs: the area is the work. Beside it the time, below the merge.

import { h } from "./svg.js";
import { digits, grouped, times } from "./words.js";
import { nearest } from "./state.js";
import { label, rule, ruler } from "./marks.js";

const LANES = 190; // height of the lanes
const MERGE = 96; // height of the weights

export function draw({ trace, step, width }) {
  const now = trace.parts[step];
  const merge = 26 + LANES + 104;
  const axis = merge + MERGE + 56;
  return {
    height: axis + 36 + 30,
    nodes: [
      h("g", { key: "lanes" }, lanes({ trace, now, y: 26, width })),
      h("g", { key: "merge" }, weights({ trace, now, y: merge, width })),
      h("g", { key: "ruler" }, numbers({ trace, now, y: axis, width })),
    ],
  };
}

// Time goes down, to scale with the first choice, in which nothing is split: what the split saves is empty below.
function lanes({ trace, now, y, width }) {
  const longest = Math.max(...trace.parts.map((part) => part.waves * part.keys));
  const high = now.keys * (LANES / longest); // of one program
  const none = trace.sms - now.busiest;
  const at = now.waves * high - (high < 24 ? 0 : high) + 14; // in the last wave, or below one that is too low
  const idle = at < LANES && width - (now.busiest * width) / trace.sms > 150;
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
    ending({ now, y: y + now.waves * high, width }),
    now.waves * high < LANES - 44 && [
      label(6, y + now.waves * high + 14, `${digits(now.us, 3)} µs`, { weight: 600 }),
      label(6, y + LANES - 12, `in one part: ${digits(trace.parts[0].us, 3)} µs`, { fill: "var(--grey)" }),
    ],
    idle &&
      label(width - 6, y + at, now.waves > 1 ? `${none} idle in the last wave` : `${none} idle`, {
        anchor: "end",
        fill: "var(--grey)",
      }),
    label(0, y + LANES + 20, `${digits(now.us, 3)} µs: ${Math.round(100 * now.share)}% of the SMs' time is used`, {
      weight: 600,
    }),
    label(0, y + LANES + 40, `${now.kv} of keys and values, ${now.parts} for parts`, { size: 12 }),
    label(0, y + LANES + 58, "a column per SM; time runs down to the dashes", { size: 12, fill: "var(--grey)" }),
  ];
}

// A column per SM, as long as its programs take.
function columns({ sms, now, high, y, width }) {
  const lane = width / sms;
  return Array.from({ length: sms }, (_, sm) => {
    const programs = sm < now.busiest ? now.waves : now.waves - 1;
    const each = `${grouped(now.keys)} keys each, for all query heads of a group`;
    return h(
      "g",
      {
        key: `sm ${sm}`,
        tip: {
          title: `SM ${sm}: ${times(programs, "program")}`,
          lines: programs ? [each] : ["it has nothing to do"],
        },
      },
      h("rect", { x: sm * lane, y, width: lane, height: LANES, fill: "var(--pale)", "fill-opacity": 0.45 }),
      programs > 0 &&
        h("rect", {
          key: "work",
          x: sm * lane + lane * 0.08,
          y,
          width: lane * 0.84,
          height: programs * high,
          fill: "var(--K)",
          class: "grow",
        }),
    );
  });
}

// The dashes at which the last program ends.
function ending({ now, y, width }) {
  const lines = [
    `${now.kv} of keys and values, ${now.parts} for parts`,
    "each SM reads at an even share of the bandwidth",
  ];
  return h(
    "g",
    { key: "end", tip: { title: `${digits(now.us, 3)} µs`, lines } },
    h("rect", { x: 0, y: y - 5, width, height: 10, fill: "transparent" }),
    rule(0, width, y, { dash: true }),
  );
}

// One row of a real text: a bar per part, as wide as its share of the keys and as high as its weight.
function weights({ trace, now, y, width }) {
  const wide = width / now.weights.length;
  const color = trace.wrong ? "var(--wrong)" : "var(--P)";
  const scale = MERGE / now.heaviest / 1.3; // the same for both bases, so that they compare
  const bar = (weight, s) =>
    h(
      "g",
      {
        key: `part ${s}`,
        tip: {
          title: `part ${s + 1} of ${now.weights.length}: ${digits(100 * weight, 3)}%`,
          lines: [
            trace.wrong
              ? "logarithms of base 2, merged as natural ones"
              : "e to the power of its lse minus that of the whole",
          ],
          code: trace.code,
        },
      },
      h("rect", { x: s * wide, y, width: wide, height: MERGE, fill: "var(--pale)", "fill-opacity": 0.45 }),
      h("rect", {
        key: "weight",
        x: s * wide + Math.min(2, wide * 0.1),
        y: y + MERGE - scale * weight,
        width: wide - 2 * Math.min(2, wide * 0.1),
        height: scale * weight,
        fill: color,
        class: "grow",
      }),
      wide > 44 &&
        label(s * wide + wide / 2, y + MERGE - scale * weight - 9, `${digits(100 * weight, 2)}%`, {
          size: 12,
          anchor: "middle",
        }),
    );
  return [
    label(
      0,
      y - 18,
      trace.wrong ? "what the parts weigh: lse of the wrong base" : "what the parts weigh in the merge",
      { weight: 650, fill: trace.wrong ? "var(--wrong)" : "var(--ink)" },
    ),
    now.weights.map(bar),
    label(0, y + MERGE + 16, "one row of a real text, 512 keys, in as many parts", { size: 12, fill: "var(--grey)" }),
  ];
}

function numbers({ trace, now, y, width }) {
  const all = trace.parts.map(({ S }) => S);
  const place = (S) => Math.log2(S) / Math.log2(all.at(-1));
  const chosen = Math.min(trace.chosen, all.at(-1));
  const spans = [
    {
      words: `the rule: ${times(trace.chosen, "part")}`,
      color: "var(--fast)",
      start: 0,
      stop: place(chosen),
      tip: {
        title: `the rule takes ${times(trace.chosen, "part")}`,
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
