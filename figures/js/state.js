// The state of a figure: what its controls say. Pure functions, no page.
// controls: [{field, kind: "clock" | "slide" | "choose" | "toggle", label, values}], as figures/figure.py has them.

export const clockOf = (controls) => controls.find((control) => control.kind === "clock")?.field;

// The key of the numbers of a state: all its fields but the clock.
export function keyOf(controls, state) {
  return JSON.stringify(controls.filter((control) => control.kind !== "clock").map((control) => state[control.field]));
}

// The value of a control that is nearest to a number, for dragging.
export function nearest(values, wanted) {
  return values.reduce((best, value) => (Math.abs(value - wanted) < Math.abs(best - wanted) ? value : best));
}

// The line of Python that shows this state.
export function python(name, state) {
  const literal = (value) => (typeof value === "boolean" ? (value ? "True" : "False") : JSON.stringify(value));
  const fields = Object.entries(state).map(([field, value]) => `${field}=${literal(value)}`);
  return `figures.${name}.explore(figures.${name}.State(${fields.join(", ")}))`;
}

// The part of an address after # for a state, and the state for such a part, without values that no control offers.
export function toHash(name, state) {
  return `#${name}?${new URLSearchParams(Object.entries(state).map(([field, value]) => [field, String(value)]))}`;
}

export function fromHash(name, controls, hash) {
  const [whose, query] = hash.replace(/^#/, "").split("?");
  const found = {};
  if (whose !== name || query === undefined) return found;
  for (const [field, words] of new URLSearchParams(query)) {
    const control = controls.find((one) => one.field === field);
    if (control?.kind === "clock" && /^\d+$/.test(words)) found[field] = Number(words);
    const value = control?.values?.find((one) => String(one) === words);
    if (value !== undefined) found[field] = value;
  }
  return found;
}

// The numbers that figures/page.py packed: {key: JSON}.
export async function unpacked(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length).map((_, at) => raw.charCodeAt(at)); // from() is several times slower
  const lines = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return Object.fromEntries((await new Response(lines).text()).split("\n").map((line) => line.split("\t")));
}
