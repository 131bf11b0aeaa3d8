// The pool as a grid of pages, each with the texts that hold it; beside it the tables; below, the room of each way.

import { h } from "./svg.js";
import { times } from "./words.js";
import { WIDE, at, bars, knob, label, rule } from "./marks.js";

const PAGE = 44; // height of a page

export function draw({ trace, step, width }) {
  const now = trace.steps[step];
  const wide = width >= WIDE;
  const across = wide ? width * 0.56 : width;
  const pool = pages({ trace, now, width: across });
  const left = wide ? across + 40 : 0;
  const top = wide ? 0 : pool.height + 26;
  const lists = tables({ trace, now, x: left, y: top, width: width - left });
  const below = Math.max(pool.height, top + lists.height) + 30;
  return {
    height: below + 110,
    nodes: [
      h("g", { key: "pool" }, pool.nodes),
      h("g", { key: "tables" }, lists.nodes),
      h("g", { key: "bill" }, bill({ trace, now, y: below, width })),
    ],
  };
}

const holders = (now, page) => now.texts.filter((text) => text.pages.includes(page));
const filled = (trace, now, page) =>
  Math.max(
    0,
    ...holders(now, page).map((text) => Math.min(trace.page, text.length - text.pages.indexOf(page) * trace.page)),
  );

// All pages, a token to scale: 16 tokens in a row.
function pages({ trace, now, width }) {
  const token = width / 16;
  const perRow = 16 / trace.page;
  const drawn = Array.from({ length: trace.pages }, (_, page) => {
    const [x, y] = [(page % perRow) * trace.page * token, 30 + Math.floor(page / perRow) * (PAGE + 10)];
    return pageOf({ trace, now, page, token, x, y });
  });
  const edge = knob({
    key: "edge",
    x: trace.page * token - 1.5,
    y: 30 + PAGE / 2,
    tip: { title: `${times(trace.page, "token")} per page`, lines: ["pull the edge of the pages"] },
    drag: { field: "page", name: "edge of the pages", to: (point) => ({ page: point.x / token }) },
  });
  return {
    nodes: [label(0, 8, `${now.what}: ${times(now.free, "page")} free`, { weight: 650, size: 15 }), drawn, edge],
    height: 30 + 4 * (PAGE + 10),
  };
}

function pageOf({ trace, now, page, token, x, y }) {
  const names = holders(now, page).map(({ name }) => name);
  const count = filled(trace, now, page);
  const copied = now.copies.find(([, to]) => to === page);
  const tip = {
    title: `page ${page}: ${names.length ? `held by ${names.join(" and ")}` : "free"}`,
    lines: names.length
      ? [
          `${times(count, "token")} of ${trace.page}`,
          ...(copied
            ? [`copied from page ${copied[0]}, with ${times(now.copied, "token")}: another text holds it`]
            : []),
          ...(names.length > 1 ? ["who writes to it gets a copy first"] : []),
        ]
      : ["the next text may have it"],
    code: copied ? trace.code : undefined,
  };
  const share = PAGE / names.length; // the height of each text
  return h(
    "g",
    { key: `page ${page}`, tip },
    h("rect", {
      x,
      y,
      width: trace.page * token - 3,
      height: PAGE,
      fill: "var(--pale)",
      "fill-opacity": 0.45,
      stroke: copied ? "var(--ink)" : "var(--grey)",
      "stroke-width": copied ? 2.5 : 1,
    }),
    names.map((name, part) =>
      h("rect", {
        key: `held by ${name}`,
        x,
        y: y + part * share,
        width: Math.max(0, count * token - 3),
        height: share,
        fill: `var(--text-${name})`,
        class: "grow",
      }),
    ),
    count > 0 &&
      names.map((name, part) => {
        const look = { anchor: "middle", weight: 700, fill: `var(--on-text-${name})` };
        return label(x + Math.min(token, count * token) / 2 - 1, y + (part + 0.5) * share, name, look);
      }),
    trace.page * token - 23 > token / 2 + 6 && // if there is room beside the letter
      label(x + trace.page * token - 8, y + PAGE - 9, String(page), {
        key: "number",
        anchor: "end",
        size: 12,
        fill: count === trace.page ? `var(--on-text-${names.at(-1)})` : "var(--grey)",
      }),
  );
}

// The table of each text: its pages, in order.
function tables({ trace, now, x, y, width }) {
  const box = Math.min(
    34,
    (width - 30) / Math.max(1, ...trace.steps.flatMap((one) => one.texts.map((text) => text.pages.length))),
  );
  const rows = now.texts.map((text, row) =>
    h(
      "g",
      {
        key: `table ${text.name}`,
        class: "mark",
        style: at(x, y + 30 + row * 46),
        tip: {
          title: `text ${text.name}: ${times(text.length, "token")}`,
          lines: [`pages ${text.pages.join(", ") || "none"}`, "the table says where its tokens are, in order"],
        },
      },
      h("rect", { y: 4, width: 22, height: 28, fill: `var(--text-${text.name})` }),
      label(11, 18, text.name, { anchor: "middle", weight: 700, fill: `var(--on-text-${text.name})` }),
      text.pages.map((page, j) => [
        h("rect", {
          key: `entry ${j}`,
          x: 30 + j * box,
          y: 4,
          width: box - 2,
          height: 28,
          fill: "var(--paper)",
          stroke: "var(--grey)",
        }),
        box >= 20 && label(30 + j * box + box / 2 - 1, 18, String(page), { size: 12, anchor: "middle" }),
      ]),
    ),
  );
  return { nodes: [label(x, y + 8, "tables: the pages of each text", { weight: 650 }), rows], height: 30 + 4 * 46 };
}

// The tokens in the pool, the room that pages keep for them, and the room of one long tensor per text.
function bill({ trace, now, y, width }) {
  const all = trace.page * trace.pages;
  const space = 122;
  const most = Math.max(all, ...trace.steps.map((one) => one.rooms));
  const scale = (width - space - 60) / most;
  const rows = [
    {
      name: "tokens",
      parts: [{ value: now.tokens, color: "var(--fast)" }],
      words: String(now.tokens),
      tip: { title: times(now.tokens, "token"), lines: ["in pages that are held, each counted once"] },
    },
    {
      name: "in pages",
      parts: [{ value: now.held, color: "var(--slow)" }],
      words: String(now.held),
      tip: { title: `room for ${now.held} tokens`, lines: [`whole pages of ${trace.page}`] },
    },
    {
      name: "one tensor each",
      parts: [{ value: now.rooms, color: now.rooms > all ? "var(--wrong)" : "var(--standard)" }],
      words: String(now.rooms),
      tip: {
        title: `room for ${now.rooms} tokens`,
        lines: [
          `${trace.longest} for each text, as nobody knows how long it will be`,
          ...(now.rooms > all ? ["more than there is: a text must wait"] : []),
        ],
      },
    },
  ];
  return [
    label(0, y, "room that is kept, in tokens", { weight: 650 }),
    bars({ x: 0, y: y + 16, rows, scale, row: 24, key: "room", space }),
    rule(space + all * scale, space + all * scale, y + 12, { key: "there" }),
    h("line", {
      key: "wall",
      x1: space + all * scale,
      x2: space + all * scale,
      y1: y + 12,
      y2: y + 88,
      stroke: "var(--ink)",
      "stroke-dasharray": "5 4",
    }),
    label(space + all * scale, y + 98, `${all}: the pool`, { size: 12, anchor: "end", fill: "var(--grey)" }),
  ];
}
