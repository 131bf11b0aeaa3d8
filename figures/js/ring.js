// Three rings under one clock, a placement each: whose tokens are whose, which blocks are done, who computed and who waited.

import { h } from "./svg.js";
import { amount, digits, fits, times } from "./words.js";
import { WIDE, label, legend, rule } from "./marks.js";

const STRIP = 22; // height of the tokens
const ROW = 22; // height of a rank's time
const ABOUT = {
  contiguous: "one stretch each",
  zigzag: "two stretches each, from either end",
  striped: "every P-th token",
};

export function draw({ trace, step, width }) {
  const wide = width >= WIDE;
  const space = 30;
  const panelWidth = wide ? (width - 2 * space) / 3 : Math.min(width, 460);
  const side = Math.min(panelWidth - 26, 200);
  const high = 46 + STRIP + 34 + side + 34 + trace.P * ROW + 70;
  const longest = Math.max(...trace.runs.map((run) => run.makespan));
  const panels = trace.runs.map((run, at) =>
    panel({
      trace,
      run,
      step,
      longest,
      x: wide ? at * (panelWidth + space) : 0,
      y: wide ? 0 : at * high,
      width: panelWidth,
      side,
    }),
  );
  const bottom = (wide ? high : 3 * high) + 8;
  const key = [
    { name: "P", words: "computed in this step" },
    { name: "S", words: "before" },
    { name: "standard", stored: true, words: "idle" },
  ];
  const notes = wide ? legend(0, bottom, key) : key.map((entry, row) => legend(0, bottom + 20 * row, [entry]));
  return { height: bottom + (wide ? 14 : 54), nodes: [panels, notes] };
}

function panel({ trace, run, step, longest, x, y, width, side }) {
  const place = (name) => `${run.name} ${name}`;
  const top = y + 46 + STRIP + 34;
  return h(
    "g",
    { key: place("panel"), class: "compared" },
    label(x, y + 8, run.name, { weight: 650, size: 15 }),
    label(x, y + 28, ABOUT[run.name], { fill: "var(--grey)" }),
    tokens({ trace, run, x, y: y + 42, width, place }),
    square({ trace, run, step, x: x + 24, y: top, side, place }),
    time({ trace, run, step, longest, x, y: top + side + 34, width, place }),
  );
}

// Whose the tokens are, from the first to the last: of 2 P stretches, or of the first 2 P tokens.
function tokens({ trace, run, x, y, width, place }) {
  const unit = width / (2 * trace.P);
  return run.tokens.map((rank, at) => {
    const striped = run.name === "striped";
    const from = striped ? at : (at * trace.N) / (2 * trace.P);
    const title = striped
      ? `token ${at}, and every ${trace.P}th after it`
      : `tokens ${from} to ${from + trace.N / (2 * trace.P) - 1}`;
    return h(
      "g",
      { key: place(`token ${at}`), tip: { title, lines: [`belong to processor ${rank}`] } },
      h("rect", {
        x: x + at * unit,
        y,
        width: unit,
        height: STRIP,
        fill: "var(--K)",
        "fill-opacity": 0.25 + (0.55 * rank) / trace.P,
        stroke: "var(--paper)",
      }),
      label(x + (at + 0.5) * unit, y + STRIP / 2, rank, { anchor: "middle" }),
    );
  });
}

// The blocks of scores: a row per processor, a column per owner of keys. Filled as far as the mask shows them.
function square({ trace, run, step, x, y, side, place }) {
  const unit = side / trace.P;
  const cells = run.steps.flatMap((ranks, s) =>
    ranks.map(({ owner, scores }, rank) => {
      const [left, top] = [x + owner * unit, y + rank * unit];
      const share = scores / trace.block;
      const done = s <= step;
      const now = s === step;
      const said = scores
        ? `${times(scores, "score")}, ${digits(100 * share, 3)}% of the block`
        : "the mask hides all of it";
      const tip = { title: `queries of ${rank}, keys of ${owner}`, lines: [`step ${s}: ${said}`] };
      const high = done ? share * (unit - 2) : 0;
      const cell = { x: left + 1, y: top + 1, width: unit - 2, height: unit - 2 };
      const bottom = top + unit - 1;
      return h(
        "g",
        { key: place(`cell ${rank} ${owner}`), tip },
        h("rect", { key: "paper", ...cell, fill: "var(--paper)", stroke: "var(--pale)" }),
        high > 0 &&
          h("rect", { key: "fill", ...cell, y: bottom - high, height: high, fill: now ? "var(--P)" : "var(--S)" }),
        now && h("rect", { key: "edge", ...cell, fill: "none", stroke: "var(--ink)", "stroke-width": 2.5 }),
        label(left + 11, top + Math.min(12, 0.29 * unit), s, {
          anchor: "middle",
          size: 12,
          fill:
            high > unit - 8 ? (now ? "var(--on-P)" : "var(--on-S)") : done && !scores ? "var(--grey)" : "var(--ink)",
        }),
        done &&
          !scores &&
          unit > 40 &&
          label(left + unit / 2 + 4, top + unit / 2 + 4, "–", { anchor: "middle", size: 14, fill: "var(--grey)" }),
      );
    }),
  );
  return [
    cells,
    run.tokens
      .slice(0, trace.P)
      .map((_, rank) => [
        label(x - 8, y + (rank + 0.5) * unit, rank, { anchor: "end", size: 12 }),
        label(x + (rank + 0.5) * unit, y - 9, rank, { anchor: "middle", size: 12 }),
      ]),
    label(x + side, y + side + 12, "whose keys →", { anchor: "end", fill: "var(--grey)", size: 12 }),
    label(x, y + side + 12, "↓ whose queries", { fill: "var(--grey)", size: 12 }),
  ];
}

// The time of each processor: it computes, then waits until the slowest of the step is done.
function time({ trace, run, step, longest, x, y, width, place }) {
  const scale = (width - 20) / longest;
  const left = x + 20;
  const passed = run.steps.slice(0, step + 1);
  let start = 0;
  const spans = passed.map((ranks, s) => {
    const slowest = Math.max(...ranks.map((rank) => rank.scores));
    const begun = start;
    start += slowest;
    return ranks.map(({ scores, owner }, rank) => {
      const top = y + rank * ROW;
      const tip = {
        title: `processor ${rank}, step ${s}`,
        lines: [
          `keys of ${owner}: ${times(scores, "score")}`,
          scores < slowest ? `then idle for as long as ${times(slowest - scores, "score")} take` : "nobody is slower",
        ],
      };
      const span = { x: left + begun * scale, y: top, width: slowest * scale, height: ROW - 6 };
      return h(
        "g",
        { key: place(`span ${s} ${rank}`), tip },
        scores < slowest && [
          h("rect", { ...span, fill: "var(--standard)", "fill-opacity": 0.35 }),
          h("rect", { ...span, fill: "url(#stored)" }),
        ],
        h("rect", {
          key: "busy",
          ...span,
          width: scores * scale,
          fill: s === step ? "var(--P)" : "var(--S)",
          stroke: "var(--paper)",
        }),
      );
    });
  });
  const high = trace.P * ROW;
  const work = passed.flat().reduce((sum, rank) => sum + rank.scores, 0);
  const idle = start ? 1 - work / (start * trace.P) : 0;
  const sent = passed.reduce((sum, ranks) => sum + ranks[0].sent, 0);
  const ideal = left + trace.ideal * scale;
  const said = `idle ${Math.round(100 * idle)}%, sent ${amount(sent)} each`;
  const whole = `ends at ${digits(run.makespan / trace.ideal, 3)} × the ideal`;
  return [
    passed[0].map((_, rank) => label(left - 6, y + rank * ROW + (ROW - 6) / 2, rank, { anchor: "end", size: 12 })),
    spans,
    h("line", {
      key: place("ideal"),
      x1: ideal,
      x2: ideal,
      y1: y - 8,
      y2: y + high + 4,
      stroke: "var(--ink)",
      "stroke-dasharray": "4 3",
      tip: { title: "the ideal", lines: ["every processor computes as much as any other, all the time"] },
    }),
    rule(left, x + width, y + high, { color: "var(--pale)", key: place("floor") }),
    label(Math.min(ideal, x + width - 16), y + high + 14, "ideal", { anchor: "middle", size: 12, fill: "var(--grey)" }),
    label(x, y + high + 34, fits(said, width, 13) ? said : `idle ${Math.round(100 * idle)}%`, { weight: 600 }),
    label(x, y + high + 52, whole, { fill: "var(--grey)" }),
  ];
}
