// The tips of marks, by mouse, touch and keyboard: arrow keys go to the nearest mark in their direction.

import { about } from "./svg.js";

const STEPS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
const MARKS = "[data-tip]:not([role=slider])"; // no sliders: on these, arrow keys change the value, and Tab reaches them

export function pointing(svg, box) {
  let here = null;

  function show(mark) {
    here?.classList.remove("here");
    here = mark;
    const tip = mark && about(mark).tip;
    box.hidden = !tip;
    if (!tip) return;
    mark.classList.add("here");
    const part = (tag, words) => Object.assign(document.createElement(tag), { textContent: words });
    box.replaceChildren(
      part("b", tip.title),
      ...(tip.lines ?? []).map((words) => part("span", words)),
      ...(tip.code ? [part("code", tip.code)] : []),
    );
    const [mine, whole] = [mark.getBoundingClientRect(), svg.getBoundingClientRect()];
    const middle = mine.left + mine.width / 2 - whole.left;
    box.style.left = `${Math.max(0, Math.min(middle - box.offsetWidth / 2, whole.width - box.offsetWidth))}px`;
    const above = mine.top - whole.top - box.offsetHeight - 8;
    box.style.top = `${above >= 0 ? above : mine.bottom - whole.top + 8}px`;
  }

  const marked = (event) => event.target.closest?.("[data-tip]");
  svg.addEventListener("pointerover", (event) => event.pointerType === "mouse" && show(marked(event)));
  svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && show(null));
  svg.addEventListener("click", (event) => show(marked(event)));
  svg.addEventListener("focusin", (event) => show(marked(event)));
  svg.addEventListener("focusout", () => show(null));
  svg.addEventListener("keydown", (event) => {
    if (event.defaultPrevented) return; // hands.js has handled the key
    if (event.key === "Escape") {
      show(null);
      svg.focus();
    }
    if (!(event.key in STEPS) && event.key !== "Enter") return;
    event.preventDefault();
    const next = event.key in STEPS ? beside(svg, marked(event), STEPS[event.key]) : svg.querySelector(MARKS);
    next?.focus({ preventScroll: true });
    next?.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  return { refresh: () => show(here?.isConnected ? here : null), hide: () => show(null) };
}

// The nearest mark in a direction, or the first mark if none has the focus.
function beside(svg, mark, [x, y]) {
  if (!mark) return svg.querySelector(MARKS);
  const middle = (element) => {
    const box = element.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  };
  const from = middle(mark);
  let best = null;
  let least = Infinity;
  for (const other of svg.querySelectorAll(MARKS)) {
    const to = middle(other);
    const along = (to[0] - from[0]) * x + (to[1] - from[1]) * y;
    const aside = Math.abs((to[0] - from[0]) * y) + Math.abs((to[1] - from[1]) * x);
    if (other !== mark && along > 1 && along + 2 * aside < least) [best, least] = [other, along + 2 * aside];
  }
  return best;
}
