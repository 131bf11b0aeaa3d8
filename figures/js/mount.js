// A figure on a page: its controls, its clock, its picture, its words, and the source of its numbers.

import { h, patch } from "./svg.js";
import { definitions } from "./marks.js";
import { ahead, moved, schedule, until } from "./clock.js";
import { clockOf, fromHash, keyOf, python, toHash, unpacked } from "./state.js";
import { handle } from "./hands.js";
import { wearing } from "./theme.js";
import { pointing } from "./tip.js";
import { grouped, pieces } from "./words.js";

const WIDEST = 1160; // pixels of a drawing
const NARROWEST = 340;
const MARGIN = 8; // beside a drawing, as in theme.css
const PACES = { slow: 2, normal: 1, fast: 1 / 3, fastest: 1 / 12 }; // time of a step, relative to the normal pace
// A number in the words that is a handle: at least 24 pixels high and wide, in a line as high as all others.
const NUMBER =
  "display: inline-block; min-width: 20px; padding: 3px 2px; margin: -3px -2px; outline-offset: -2px; " +
  "text-align: center; white-space: nowrap; text-decoration: underline dotted; text-underline-offset: 3px; " +
  "cursor: ew-resize; touch-action: pan-y";
const CAN_UNPACK = "DecompressionStream" in globalThis; // in browsers since 2023
const PATIENCE = 10_000; // ms without an answer after which the kernel counts as gone

// Put a figure into an element.
// data: {name, controls, state, traces: {key: {trace, words, idle}}, packed: more traces, page: true without a kernel}
// draw: a function of {trace, step, state, width} that returns {height, nodes}. style: the text of theme.css.
export function mount(host, data, draw, style) {
  const figure = new Figure(host, data, draw);
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  const sheet = Object.assign(document.createElement("style"), { textContent: style });
  root.replaceChildren(sheet, figure.parts.whole);
  host.setAttribute("data-lm-suppress-shortcuts", ""); // in JupyterLab m, b and dd belong to the notebook
  figure.open();
  return figure;
}

class Figure {
  constructor(host, data, draw) {
    Object.assign(this, { host, data, draw });
    this.clock = clockOf(data.controls);
    this.traces = { ...data.traces }; // packed ones are JSON until they are drawn
    this.coming = null; // the promise of the packed traces
    this.channel = null;
    this.state = data.state;
    this.moment = { step: this.state[this.clock] }; // the step to which the clock was set, and its numbers
    this.shown = null; // the state that the picture shows
    this.drawn = 0; // the width of the drawing in its own pixels
    this.space = 0; // the width for the picture on the page
    this.zoom = 1;
    this.playing = 0;
    this.waiting = 0;
    this.pulled = false; // during a pull nothing is animated
    this.parts = frame(data, this.clock);
    this.actions = this.parts.actions = actionsOf(this);
  }

  // Show the first picture, and listen to the page.
  open() {
    const { data, parts } = this;
    const pull = (fields, byPointer) => {
      this.pulled = byPointer;
      this.actions.set(fields);
      this.pulled = false;
    };
    const now = () => ({ state: this.state, last: this.last() });
    this.hands = [parts.svg, parts.words].map((root) => handle(root, data.controls, now, pull));
    this.tips = pointing(parts.svg, parts.tip);
    new ResizeObserver(() => {
      this.measure();
      this.show();
    }).observe(parts.stage);
    this.measure();
    wearing(parts.whole);
    this.set({});
    if (data.packed) this.coming = this.unpack();
    if (!data.page) return;
    const follow = () => {
      const found = fromHash(data.name, data.controls, location.hash);
      if (Object.keys(found).length) this.actions.set(found);
    };
    follow();
    addEventListener("hashchange", follow); // the address has changed, or a link to a state was followed
  }

  // Unpack the packed numbers when the first picture is on the screen, and show a state that was asked for meanwhile.
  async unpack() {
    await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
    if (CAN_UNPACK) this.traces = { ...(await unpacked(this.data.packed)), ...this.traces };
    this.coming = null;
    if (this.state !== this.shown) this.set({});
  }

  // The numbers of a state, if they are there.
  numbers(state) {
    const key = keyOf(this.data.controls, state);
    if (typeof this.traces[key] === "string") this.traces[key] = JSON.parse(this.traces[key]);
    return this.traces[key];
  }

  // Measure the space before drawing: during it, the page would be laid out twice.
  measure() {
    this.space = Math.max(this.parts.stage.clientWidth - 2 * MARGIN, 0) || 960;
  }

  set(fields) {
    const { clock } = this;
    const wanted = { ...this.state, ...fields };
    if (clock in fields) this.moment = { step: fields[clock] };
    const found = this.numbers(wanted);
    if (!found) return this.ask(wanted);
    this.settle();
    this.moment.numbers ??= found;
    if (clock !== undefined) wanted[clock] = sameMoment(this.moment.step, this.moment.numbers, found);
    this.state = wanted;
    this.show();
  }

  show() {
    const { host, parts, state, shown, clock, draw } = this;
    const { controls } = this.data;
    const numbers = this.numbers(state);
    if (!numbers) return; // they are still coming
    const { trace, words, idle } = numbers;
    const step = clock === undefined ? 0 : state[clock];
    const width = Math.round(Math.max(Math.min(this.space, WIDEST) / this.zoom, NARROWEST));
    const { height, nodes } = draw({ trace, step, state, width, brief: "brief" in host.dataset });
    const another = width !== this.drawn || shown === null || keyOf(controls, shown) !== keyOf(controls, state);
    const forward = !another && step === shown[clock] + 1;
    parts.stage.classList.toggle("still", this.pulled || another); // animate only when the clock moves
    this.fit(width, height);
    patch(parts.svg, [definitions(), ...nodes.flat(Infinity)], forward);
    patch(parts.words, sentenceOf(words[step], controls), false, parts.words.namespaceURI);
    parts.svg.setAttribute("aria-label", parts.words.textContent);
    for (const { field } of controls) {
      parts.controls[field].show(state[field], words.length - 1);
      parts.controls[field].rest(idle[field]);
    }
    this.shown = state;
    this.drawn = width;
    for (const one of this.hands) one.tell();
    this.tips.refresh();
    host.dispatchEvent(new CustomEvent("flashlab-shown", { detail: { state } }));
  }

  // Give a drawing of this size its place on the page.
  fit(width, height) {
    const { parts, zoom, space } = this;
    const across = zoom * Math.min(width, space); // a drawing that is wider than the space is scaled down
    const beyond = across > space + zoom; // as on a phone with larger type
    parts.stage.classList.toggle("beyond", beyond);
    parts.svg.style.width = beyond ? `${across}px` : "";
    parts.svg.style.touchAction = beyond ? "auto" : ""; // a finger also moves the picture sideways
    const box = `0 0 ${width} ${Math.ceil(height)}`;
    if (parts.svg.getAttribute("viewBox") === box) return; // to set it again would lay out every text again
    parts.svg.setAttribute("viewBox", box);
    parts.stage.style.setProperty("--shape", width / height);
  }

  ask(wanted) {
    this.stop();
    const opening = this.data.page ? this.data.state : this.shown; // a page has the numbers near its first state
    const missing = this.data.controls.filter(({ field }) => wanted[field] !== opening[field] && field !== this.clock);
    const words = missing.map(({ field, label }) => `${label} = ${wanted[field]}`).join(" with ");
    if (!this.coming && this.channel === null) return this.refuse(words);
    this.settle();
    this.state = wanted;
    this.parts.stage.classList.add("busy");
    if (this.coming) return;
    this.waiting = setTimeout(() => this.refuse(words), PATIENCE);
    try {
      this.channel.send({ state: wanted });
    } catch {
      this.refuse(words); // the kernel is gone, and the channel with it
    }
  }

  refuse(words) {
    this.settle();
    this.set(this.shown);
    this.parts.message.textContent = this.missing(words);
  }

  // Say why there are no numbers, and what helps.
  missing(words) {
    if (this.data.packed && !CAN_UNPACK)
      return `This browser cannot unpack the numbers for ${words}: it takes one of 2023 or later.`;
    return this.data.page
      ? `This page has no numbers for ${words}. Set one of them back, or press reset; the notebook computes all.`
      : `No kernel answers, so there are no numbers for ${words}: run this cell again.`;
  }

  settle() {
    clearTimeout(this.waiting);
    this.parts.stage.classList.remove("busy");
    this.parts.message.textContent = "";
  }

  connect(channel) {
    this.channel = channel;
  }

  receive({ key, error, ...numbers }) {
    if (error) return this.refuse(error);
    this.traces[key] = numbers;
    if (key === keyOf(this.data.controls, this.state)) this.set({});
  }

  // The last step of the clock.
  last() {
    return this.numbers(this.shown).words.length - 1;
  }

  stop() {
    clearTimeout(this.playing);
    this.playing = 0;
    this.parts.play?.show(false);
  }

  play() {
    const { clock } = this;
    if (this.playing) return this.stop();
    if (this.state !== this.shown) return; // the picture waits for the kernel
    if (this.state[clock] === this.last()) this.set({ [clock]: 0 });
    const plan = schedule(this.numbers(this.state).words);
    let at = performance.now();
    const tick = () => {
      if (this.state[clock] === this.last()) return this.stop();
      const { next, ms } = ahead(plan, this.state[clock], PACES[this.parts.pace.value]);
      this.parts.whole.style.setProperty("--pace", `${Math.min(200, 0.8 * ms)}ms`);
      this.set({ [clock]: next });
      at = Math.max(at + ms, performance.now()); // includes the time of drawing
      this.playing = setTimeout(tick, at - performance.now());
    };
    this.parts.play.show(true);
    this.playing = setTimeout(tick, 0);
  }

  // Copy a link to the state, or show the link where copying is impossible.
  async link() {
    const { data, state } = this;
    const hash = toHash(data.name, state);
    const words = data.page ? location.href.split("#")[0] + hash : python(data.name, state);
    if (data.page) history.replaceState(null, "", hash);
    const copied = await navigator.clipboard?.writeText(words).then(
      () => true,
      () => false,
    );
    this.parts.message.textContent = copied ? "Copied." : words;
  }
}

// The step in other numbers that is the same moment: the same time, if steps have times.
function sameMoment(step, from, to) {
  const { times } = from.trace;
  return times ? until(times[Math.min(step, times.length - 1)], to.trace.times) : moved(step, from.words, to.words);
}

// What the controls and buttons of a figure do. Each change of the state stops the clock.
function actionsOf(figure) {
  const { clock, parts } = figure;
  const set = (fields) => {
    figure.stop();
    figure.set(fields);
  };
  return {
    set,
    step: (by) => {
      figure.stop();
      const next = figure.state[clock] + by;
      if (next >= 0 && next <= figure.last()) figure.set({ [clock]: next });
    },
    play: () => figure.play(),
    begin: () => set({ [clock]: 0 }),
    reset: () => set(figure.data.state),
    larger: (by) => {
      figure.zoom = Math.min(Math.max(figure.zoom + by, 1), 2);
      parts.whole.style.setProperty("--zoom", figure.zoom);
      figure.show();
    },
    full: () => (document.fullscreenElement ? document.exitFullscreen() : parts.whole.requestFullscreen()),
    link: () => figure.link(),
  };
}

// The words of a figure as nodes.
function sentenceOf(words, controls) {
  const numberOf = (text, field) => {
    const { label } = controls.find((control) => control.field === field);
    return h("span", { key: field, style: NUMBER, drag: { field, name: label } }, text);
  };
  return pieces(words).map(([text, field]) => (field ? numberOf(text, field) : text));
}

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [field, value] of Object.entries(attributes)) if (value !== undefined) node.setAttribute(field, value);
  node.append(...children);
  return node;
}

function buttonOf(parts, words, title, action) {
  const button = element("button", { type: "button", title, "aria-label": title }, words);
  button.addEventListener("click", () => action(parts.actions));
  return button;
}

// How each kind of control looks: {input, label, show(value, last step)}.
const MAKERS = { slide: sliderOf, choose: menuOf, toggle: boxOf, clock: clockRowOf };

function controlOf(parts, control) {
  const row = MAKERS[control.kind](parts, control);
  row.input.dataset.field = control.field;
  const reason = element("span");
  row.rest = (why = "") => {
    if (why === reason.textContent) return;
    reason.textContent = why;
    row.input.disabled = why !== "";
    if (why) row.label.append(reason);
    else reason.remove();
  };
  parts.controls[control.field] = row;
  return row.label;
}

function sliderOf(parts, { field, label, values }) {
  const width = `${Math.max(6, 1.5 + 0.45 * values.length)}em`; // short, so that a row has room for all controls
  const input = element("input", {
    type: "range",
    min: 0,
    max: values.length - 1,
    step: 1,
    style: `width: ${width}`,
  });
  const output = element("output");
  input.addEventListener("input", () => parts.actions.set({ [field]: values[input.valueAsNumber] }));
  const show = (value) => {
    const text = typeof value === "number" ? grouped(value) : value;
    input.value = values.indexOf(value);
    if (output.textContent === text) return; // to set a text lays it out again
    input.setAttribute("aria-valuetext", text);
    output.textContent = text;
  };
  return { input, show, label: element("label", {}, label, input, output) };
}

function menuOf(parts, { field, label, values }) {
  const input = element("select", {}, ...values.map((value) => element("option", {}, String(value))));
  input.addEventListener("change", () => parts.actions.set({ [field]: values[input.selectedIndex] }));
  const show = (value) => {
    input.selectedIndex = values.indexOf(value);
  };
  return { input, show, label: element("label", {}, label, input) };
}

function boxOf(parts, { field, label }) {
  const input = element("input", { type: "checkbox" });
  input.addEventListener("change", () => parts.actions.set({ [field]: input.checked }));
  const show = (value) => {
    input.checked = value;
  };
  return { input, show, label: element("label", {}, input, label) };
}

function clockRowOf(parts, { field, label, says }) {
  const input = element("input", { type: "range", min: 0, step: 1, "aria-label": label });
  const count = element("span", { class: "count" });
  input.addEventListener("input", () => parts.actions.set({ [field]: input.valueAsNumber }));
  const show = (value, last) => {
    input.max = last;
    input.value = value;
    const now = says?.[value] ?? `${label} ${value} of ${last}`;
    input.setAttribute("aria-valuetext", now);
    count.textContent = now;
  };
  const turn = buttonOf(parts, "play", "play", ({ play }) => play());
  parts.play = {
    show: (on) => {
      turn.textContent = on ? "pause" : "play";
      turn.title = on ? "pause" : "play";
      turn.setAttribute("aria-label", turn.title);
    },
  };
  const paces = Object.keys(PACES).map((pace) => element("option", {}, pace));
  parts.pace = element("select", { "aria-label": "speed" }, ...paces);
  parts.pace.value = "normal";
  const row = element(
    "div",
    { class: "clock", role: "group", "aria-label": "clock" },
    buttonOf(parts, "|◀", "back to the beginning", ({ begin }) => begin()),
    buttonOf(parts, "◀", "one step back", ({ step }) => step(-1)),
    turn,
    buttonOf(parts, "▶", "one step on", ({ step }) => step(+1)),
    input,
    count,
    parts.pace,
  );
  return { input, show, label: row };
}

function toolsOf(parts) {
  return element(
    "div",
    { class: "tools" },
    buttonOf(parts, "reset", "reset", ({ reset }) => reset()),
    buttonOf(parts, "A−", "A−: smaller type", ({ larger }) => larger(-0.25)),
    buttonOf(parts, "A+", "A+: larger type", ({ larger }) => larger(+0.25)),
    buttonOf(parts, "link", "copy a link to this state", ({ link }) => link()),
    buttonOf(parts, "full screen", "full screen", ({ full }) => full()),
  );
}

// The elements around a picture, and how each control shows its value. actions: what its buttons do; set later.
function frame({ name, controls }, clock) {
  const parts = { controls: {}, actions: {} };
  parts.svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  parts.svg.setAttribute("role", "group");
  parts.svg.setAttribute("tabindex", "0");
  parts.tip = element("div", { class: "tip", "aria-hidden": "true", hidden: "" });
  parts.stage = element("div", { class: "stage" }, parts.svg, parts.tip);
  parts.words = element("p", { class: "words", "aria-live": "polite" });
  parts.message = element("p", { class: "message", role: "status" });
  const labels = (some) => some.map((control) => controlOf(parts, control));
  const rows = labels(controls.filter((control) => control.field !== clock));
  const time = labels(controls.filter((control) => control.field === clock));
  parts.whole = element(
    "div",
    { class: "flashlab", role: "figure", "aria-label": name.replaceAll("_", " ") },
    element(
      "div",
      { class: "head" },
      element("div", { class: "controls" }, ...rows, toolsOf(parts)),
      ...time,
      parts.message,
    ),
    parts.stage,
    parts.words,
  );
  return parts;
}

// Mount a figure in every element with this id (an output can be shown twice), and connect it to its kernel.
export function start(id, data, draw, style) {
  globalThis.flashlab ??= { figures: {}, channels: {} };
  const { figures, channels } = globalThis.flashlab;
  for (const host of document.querySelectorAll(`[id="${id}"]`)) {
    if (host.shadowRoot) continue;
    const figure = mount(host, data, draw, style);
    figures[id] ??= [];
    figures[id].push(figure);
    if (channels[id]) figure.connect(channels[id]);
    requestAnimationFrame(() => requestAnimationFrame(() => keepInView(host)));
  }
}

// In JupyterLab Shift+Enter scrolls to the next cell: scroll back to the figure of the cell that was run.
function keepInView(host) {
  const cell = host.closest(".jp-Cell");
  if (cell?.nextElementSibling?.matches(".jp-mod-active")) host.scrollIntoView({ block: "nearest" });
}
