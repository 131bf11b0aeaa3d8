// The marks that all figures share. Each returns a node; lengths are pixels of the drawing.

import { h } from "./svg.js";
import { fits } from "./words.js";

export const SIZE = 13; // of letters
export const WIDE = 740; // the least width at which what is compared stands side by side

// The place of a mark, as a style: a change of it is animated.
export const at = (x, y) => `transform: translate(${round(x)}px, ${round(y)}px)`;
const round = (value) => Math.round(value * 100) / 100;

// A line of text. anchor: start, middle or end.
export function label(x, y, words, { size = SIZE, weight, anchor, fill = "var(--ink)", key, rotate } = {}) {
  const transform = rotate ? `rotate(${rotate} ${round(x)} ${round(y)})` : undefined;
  return h(
    "text",
    { key, x: round(x), y: round(y), "font-size": size, "font-weight": weight, "text-anchor": anchor, fill, transform },
    words,
  );
}

// Lines of text, one below the other.
export function lines(x, y, rows, { gap = 1.4, size = SIZE, ...look } = {}) {
  return rows.map((words, row) => label(x, y + row * gap * size, words, { size, ...look }));
}

// A tile of a tensor: its colour, its letter, and hatching in slow memory. Words stay visible through a moving tile.
export function tile({ key, x, y, width, height, name, letter, size = SIZE, stored, faint, current, tip, drag, from }) {
  const color = `var(--${name})`;
  const words = letter !== undefined && fits(String(letter), width - 3, size) && height >= size ? letter : null;
  return h(
    "g",
    { key, tip, drag, style: at(x, y), from: from && { style: at(from.x, from.y), opacity: 0.2 }, class: "mark" },
    h("rect", {
      width: round(width),
      height: round(height),
      fill: color,
      "fill-opacity": faint,
      stroke: current ? "var(--ink)" : "var(--paper)",
      "stroke-width": current ? 2.5 : 1,
      class: "grow",
    }),
    stored && h("rect", { width: round(width), height: round(height), fill: "url(#stored)", class: "grow" }),
    words !== null &&
      label(width / 2, height / 2, words, { size, anchor: "middle", fill: faint ? "var(--ink)" : `var(--on-${name})` }),
  );
}

// Boxes of the same look as one element, which is drawn faster than one for each. The pointer passes through it.
export function boxes(key, places, look) {
  const d = places
    .filter(({ width, height }) => width > 0 && height > 0)
    .map(({ x, y, width, height }) => `M${round(x)} ${round(y)}h${round(width)}v${round(height)}h${round(-width)}z`);
  return d.length > 0 && h("path", { key, d: d.join(""), "pointer-events": "none", ...look });
}

// A place with a tip, over what is drawn there.
export const spot = (key, { x, y, width, height }, tip) =>
  h("rect", {
    key,
    x: round(x),
    y: round(y),
    width: round(width),
    height: round(height),
    fill: "transparent",
    class: "spot",
    tip,
  });

// An empty place: an outline that waits for a tile.
export function slot({ key, x, y, width, height, color = "var(--grey)", dash, tip }) {
  return h("rect", {
    key,
    x: round(x),
    y: round(y),
    width: round(width),
    height: round(height),
    fill: "var(--paper)",
    stroke: color,
    "stroke-dasharray": dash ? "3 3" : undefined,
    tip,
  });
}

// A memory: a box to scale, with its name above it.
export function memoryBox({ x, y, width, height, name, color, key }) {
  return [
    h("rect", {
      key,
      x,
      y,
      width: round(width),
      height,
      rx: 3,
      fill: color,
      "fill-opacity": 0.1,
      stroke: color,
      "stroke-width": 2,
    }),
    name && label(x, y - 12, name, { weight: 600 }),
  ];
}

// Bars of one scale, a row each: {name, parts: [{value, color, stored}], words}. scale: pixels per unit of value.
export function bars({ x, y, rows, scale, row = 20, key, space = 30 }) {
  return rows.map(({ name, parts, words, tip }, line) => {
    let left = x + space;
    const top = y + line * row;
    const drawn = parts.map(({ value, color, stored }, part) => {
      const width = value * scale;
      const start = left;
      left += width;
      return [
        h("rect", {
          key: `bar ${part}`,
          x: round(start),
          y: top,
          width: round(width),
          height: row * 0.7,
          fill: color,
          class: "grow",
        }),
        stored &&
          h("rect", {
            key: `hatch ${part}`,
            x: round(start),
            y: top,
            width: round(width),
            height: row * 0.7,
            fill: "url(#stored)",
            class: "grow",
          }),
      ];
    });
    return h(
      "g",
      { key: `${key} ${name}`, tip },
      label(x + space - 6, top + row * 0.35, name, { anchor: "end" }),
      drawn,
      h("g", { key: "words", class: "mark", style: at(left + 6, top + row * 0.35) }, label(0, 0, words)),
    );
  });
}

// A horizontal rule with a name at its end.
export function rule(x0, x1, y, { color = "var(--ink)", dash, width = 1.2, key } = {}) {
  return h("line", {
    key,
    x1: round(x0),
    x2: round(x1),
    y1: round(y),
    y2: round(y),
    stroke: color,
    "stroke-width": width,
    "stroke-dasharray": dash ? "5 4" : undefined,
    class: "grow",
  });
}

// An axis with spans above it and a handle to pull. Everything is at a fraction of the width.
// spans: {words, color, start, stop, tip}, a row each; ticks: {at, words}; handle: {at, tip, drag}.
export function ruler({ key, x, y, width, spans, ticks, handle }) {
  const row = 36;
  const high = spans.length * row;
  const place = (fraction) => round(x + fraction * width);
  return h(
    "g",
    { key },
    spans.map(({ words, color, start, stop, tip }, line) => [
      label(x, y + line * row + 6, words, { size: 12 }),
      h("rect", {
        key: `whole ${line}`,
        x,
        y: y + line * row + 16,
        width,
        height: 8,
        fill: "var(--pale)",
        "fill-opacity": 0.5,
      }),
      stop > start &&
        h("rect", {
          key: `span ${line}`,
          x: place(start),
          y: y + line * row + 16,
          width: round((stop - start) * width),
          height: 8,
          fill: color,
          class: "grow",
          tip,
        }),
      h("line", {
        key: `here ${line}`,
        class: "mark",
        style: at(place(handle.at), y + line * row),
        y1: 15,
        y2: 27,
        stroke: "var(--ink)",
        "stroke-width": 2,
      }),
    ]),
    rule(x, x + width, y + high, { color: "var(--grey)", key: "axis" }),
    ticks.map(({ at: fraction, words }) => [
      h("line", {
        key: `tick ${words}`,
        x1: place(fraction),
        x2: place(fraction),
        y1: y + high,
        y2: y + high + 5,
        stroke: "var(--grey)",
      }),
      label(place(fraction), y + high + 17, words, {
        size: 12,
        anchor: fraction < 0.03 ? "start" : fraction > 0.97 ? "end" : "middle",
        fill: "var(--grey)",
      }),
    ]),
    knob({ key: "handle", x: place(handle.at), y: y + high, tip: handle.tip, drag: handle.drag }),
  );
}

// A dot to pull, with room for a finger.
export function knob({ x, y, ...about }) {
  return h(
    "g",
    { ...about, class: "mark", style: at(x, y) },
    h("rect", { x: -16, y: -16, width: 32, height: 32, fill: "transparent" }),
    h("circle", { r: 7, fill: "var(--ink)", stroke: "var(--paper)" }),
  );
}

// The edges of the first tile of a map at (x, y), to pull: downwards for more queries, to the right for more keys.
// unit: pixels per query and key; named: whether the keyboard reaches them, too.
export function edges({ key, x, y, unit, Br, Bc, named }) {
  const edge = (field, size, place, grows, to) =>
    knob({
      key: `${key} ${field}`,
      ...place,
      tip: { title: `${field} = ${size}`, lines: ["pull the edge of the tiles"] },
      drag: { field, to, grows, name: named ? `edge of the tiles, ${field}` : undefined },
    });
  return [
    edge("Br", Br, { x: x - 2, y: y + Br * unit.y }, [1, 1], (point) => ({ Br: (point.y - y) / unit.y })),
    Bc && edge("Bc", Bc, { x: x + Bc * unit.x, y: y - 3 }, [1, -1], (point) => ({ Bc: (point.x - x) / unit.x })),
  ];
}

// What the colours, the hatching and the dashed places of a drawing mean.
export function legend(x, y, entries) {
  let left = x;
  return entries.map(({ words, ...look }) => {
    const box = { key: `legend ${words}`, x: left, y: y - 7, width: 14, height: 14 };
    left += 22 + words.length * SIZE * 0.56 + 14;
    return [look.dash ? slot({ ...box, ...look }) : tile({ ...box, ...look }), label(box.x + 20, y, words)];
  });
}

// Shared definitions: the hatching for slow memory, and the dots for lost digits.
export function definitions() {
  return h(
    "defs",
    {},
    h(
      "pattern",
      { id: "stored", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      h("rect", { width: 2, height: 6, fill: "var(--hatch)" }),
    ),
    h(
      "pattern",
      { id: "few", width: 5, height: 5, patternUnits: "userSpaceOnUse" },
      h("circle", { cx: 2, cy: 2, r: 1, fill: "var(--hatch)" }),
    ),
  );
}

// Lines of source as they are written, folded where they do not fit. ran: the numbers of the lines with a bar beside
// them; lit: the number of the highlighted line; tips: by number.
export function source(x, y, rows, { width, ran = [], lit, tips = {}, key }) {
  const letter = 7.25;
  const gap = 17;
  let top = y;
  const drawn = rows.map((row, number) => {
    const [code, comment] = row.split(/\s+(?=#)/);
    const indent = code.length - code.trimStart().length;
    const most = Math.floor((width - 8) / letter);
    const step = most < 60 ? indent / 2 : indent; // narrow: half the indentation
    const parts = folded(code.trim(), most - step, most - step - 2);
    const start = top;
    top += gap * parts.length;
    const words = (text, left, line, fill) =>
      h(
        "text",
        {
          x: round(x + 6 + left * letter),
          y: start + gap * (line + 0.5),
          "font-size": 12,
          "font-family": "ui-monospace, 'DejaVu Sans Mono', monospace",
          textLength: text.length * letter,
          fill,
        },
        text,
      );
    const room = parts.length === 1 && comment && step + code.trim().length + 2 + comment.length <= most;
    return h(
      "g",
      { key: `${key} ${number}`, tip: tips[number] },
      h("rect", {
        x,
        y: start,
        width,
        height: gap * parts.length,
        fill: number === lit ? "var(--pale)" : "transparent",
      }),
      ran.includes(number) &&
        h("rect", { x, y: start, width: number === lit ? 4 : 2, height: gap * parts.length, fill: "var(--fast)" }),
      parts.map((part, line) => words(part, step + (line ? 2 : 0), line, "var(--ink)")),
      room && words(comment, step + code.trim().length + 2, 0, "var(--grey)"),
    );
  });
  return { nodes: drawn, height: top - y };
}

// A text in parts of at most so many letters, broken at spaces. The first part has a limit of its own.
function folded(text, first, most) {
  const parts = [];
  let rest = text;
  while (rest.length > (parts.length ? most : first)) {
    const reach = parts.length ? most : first;
    const space = rest.lastIndexOf(" ", reach);
    const cut = space > 0 ? space : reach;
    parts.push(rest.slice(0, cut));
    rest = rest.slice(cut).trimStart();
  }
  return [...parts, rest];
}
