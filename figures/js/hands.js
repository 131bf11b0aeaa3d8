// Hands: readers drag a mark to set the value of a control, and keys on the mark do the same.
// drag: {field, to, name, grows, values, zooms}. to: a function of a point of the drawing and the start of the pull,
// {point, state} (undefined for Enter). It returns the wanted fields, and each takes the nearest value of its control.
// Without to, PULL pixels sideways are one value. name: the keyboard reaches the mark, as a slider of that name;
// without a name, Enter presses it. grows: the directions in which the value grows; right and up by default. values:
// those of the control by default. zooms, for a clock: Ctrl and the wheel turn it, too (the wheel alone scrolls the
// page), and a pull animates its changes as a key does.

import { about } from "./svg.js";
import { nearest } from "./state.js";

const NOTCH = 20; // pixels of the wheel for one step
const LINE = 33; // pixels of a line, the unit of some mice
const PULL = 12; // pixels of a pull sideways for one value

// The value after a key, undefined for other keys. now may lie between two values.
export function turned({ grows: [right, down] = [1, -1] }, key, values, now) {
  const by = { ArrowRight: right, ArrowLeft: -right, ArrowDown: down, ArrowUp: -down }[key];
  const at = values.includes(now) ? values.indexOf(now) : values.findLastIndex((value) => value < now) + 0.5;
  if (key === "Home") return values[0];
  if (key === "End") return values.at(-1);
  if (by === undefined) return undefined;
  return values[Math.min(Math.max(by > 0 ? Math.floor(at) + 1 : Math.ceil(at) - 1, 0), values.length - 1)];
}

// Listen to a picture, or to the words below it. get returns its state and the last step of its clock; set takes fields
// that have changed, and whether a pointer changed them.
export function handle(root, controls, get, set) {
  const controlOf = (field) => controls.find((one) => one.field === field);
  const steps = () => Array.from({ length: get().last + 1 }, (_, step) => step); // of the clock
  const valuesOf = (field) => controlOf(field).values ?? steps();
  const ask = (wanted, byPointer) => {
    const found = Object.entries(wanted).map(([field, value]) => {
      const values = valuesOf(field);
      return [field, values.includes(value) ? value : nearest(values, value)];
    });
    if (found.some(([field, value]) => get().state[field] !== value)) set(Object.fromEntries(found), byPointer);
  };
  followPulls(root, get, ask, valuesOf);
  followWheel(root, get, ask);
  followKeys(root, get, ask, valuesOf);
  return {
    // Tell screen readers the value of each handle.
    tell() {
      for (const held of root.querySelectorAll("[role=slider]")) {
        const { field } = about(held).drag;
        const [values, value] = [valuesOf(field), get().state[field]];
        held.setAttribute("aria-valuemax", values.length - 1);
        held.setAttribute("aria-valuenow", values.indexOf(value));
        held.setAttribute("aria-valuetext", controlOf(field).says?.[value] ?? value);
      }
    },
  };
}

const heldBy = (event) => event.target.closest?.("[data-drag]");

// A point of the window in the coordinates of the drawing. Words have those of the window.
function pointOf(root, { x, y }) {
  const { a, d, e, f } = root.getScreenCTM?.() ?? { a: 1, d: 1, e: 0, f: 0 };
  return { x: (x - e) / a, y: (y - f) / d };
}

function followPulls(root, get, ask, valuesOf) {
  let mark = null;
  let start = null;
  const sideways = (field, { x }) => {
    const values = valuesOf(field);
    const at = values.indexOf(start.state[field]) + Math.round((x - start.point.x) / PULL);
    return { [field]: values[Math.min(Math.max(at, 0), values.length - 1)] };
  };
  const pull = (event) => {
    const { field, to, zooms } = about(mark).drag;
    const point = pointOf(root, event);
    ask(to ? to(point, start) : sideways(field, point), !zooms);
  };
  const release = () => {
    mark = null;
  };
  root.addEventListener("pointerdown", (event) => {
    mark = heldBy(event);
    if (!mark) return;
    // The browser captures fingers by itself, and their taps show tips.
    if (event.pointerType !== "touch") root.setPointerCapture(event.pointerId);
    start = { point: pointOf(root, event), state: get().state };
    pull(event);
  });
  root.addEventListener("pointermove", (event) => mark?.isConnected && pull(event));
  root.addEventListener("pointerup", release);
  root.addEventListener("pointercancel", release);
  root.addEventListener("selectstart", (event) => mark && event.preventDefault()); // a pull selects no letters
}

function followWheel(root, get, ask) {
  let left = 0; // pixels of the wheel that do not make a step yet
  const turn = (event) => {
    const { field, zooms } = about(heldBy(event)).drag ?? {};
    if (!zooms || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    left -= event.deltaY * (event.deltaMode === WheelEvent.DOM_DELTA_LINE ? LINE : 1);
    const steps = Math.trunc(left / NOTCH);
    left -= steps * NOTCH;
    ask({ [field]: get().state[field] + steps }, false);
  };
  root.addEventListener("wheel", turn, { passive: false });
}

function followKeys(root, get, ask, valuesOf) {
  root.addEventListener("keydown", (event) => {
    const held = heldBy(event);
    if (!held) return;
    const { field, to, name, ...way } = about(held).drag;
    const value = name && turned(way, event.key, way.values ?? valuesOf(field), get().state[field]);
    if (value === undefined && (name || event.key !== "Enter")) return;
    event.preventDefault();
    const box = held.getBoundingClientRect();
    const middle = () => pointOf(root, { x: box.x + box.width / 2, y: box.y + box.height / 2 });
    ask(name ? { [field]: value } : to(middle()), false);
  });
}
