// A chart whose marks say their values: the drawing, stored as data, replaces the stored picture.

import { h, patch } from "./svg.js";
import { wearing } from "./theme.js";
import { pointing } from "./tip.js";

// Replace the picture of each chart of the page by its drawing. style: the text of theme.css and chart.css.
export function start(style) {
  for (const picture of document.querySelectorAll("img[data-chart]")) replace(picture, style);
}

function replace(picture, style) {
  const { width, height, nodes, marks } = JSON.parse(picture.dataset.chart);
  const element = (tag, name, ...children) => {
    const it = Object.assign(document.createElement(tag), { className: name });
    it.append(...children);
    return it;
  };
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const attributes = { viewBox: `0 0 ${width} ${height}`, role: "group", tabindex: "0", "aria-label": picture.alt };
  for (const [name, value] of Object.entries(attributes)) svg.setAttribute(name, value);
  patch(svg, [...marks.map(markOf), h("g", { class: "drawn", "aria-hidden": "true" }, nodes.map(nodeOf))]);
  const tip = element("div", "tip");
  Object.assign(tip, { hidden: true, ariaHidden: "true" });
  const whole = element("div", "flashlab", element("div", "stage", svg, tip));
  const host = element("div", picture.className);
  host.style.maxWidth = `${width}px`;
  host.setAttribute("data-lm-suppress-shortcuts", ""); // in JupyterLab arrows belong to the notebook
  host.attachShadow({ mode: "open" }).append(Object.assign(element("style"), { textContent: style }), whole);
  wearing(whole);
  pointing(svg, tip);
  picture.replaceWith(host);
}

const nodeOf = ([tag, attributes, ...children]) => h(tag, attributes, ...children);

// A place that says its value. If it has a share, its ground has that share of a weight's colour.
function markOf({ box: [x, y, width, height], title, lines, share }) {
  const fill = share === undefined ? "transparent" : `color-mix(in srgb, var(--most) ${share}%, var(--paper))`;
  return h("g", { tip: { title, lines } }, h("rect", { x, y, width, height, fill }));
}
