// A drawing is a tree of plain nodes: a pure function makes it, `patch` puts it on the page, `markup` writes it down.
// A node with a key stays the same element from one drawing to the next, so that it can travel.

// Return a node. Attributes with a meaning of their own: key; tip (what pointing at it shows: {title, lines, code});
// drag (how it holds a value, as hands.js says); from (attributes with which it enters when the clock goes on).
export function h(tag, attributes = {}, ...children) {
  return { tag, attributes, children: gathered(children, []) };
}

// All that is there, however deep in lists it is.
function gathered(children, kept) {
  for (const child of children) {
    if (Array.isArray(child)) gathered(child, kept);
    else if (child !== null && child !== undefined && child !== false) kept.push(child);
  }
  return kept;
}

const SPECIAL = new Set(["key", "tip", "drag", "from"]);
const memory = new WeakMap(); // element -> {key, shown, tip, drag}

// The tip and the drag of an element that `patch` made.
export const about = (element) => memory.get(element) ?? {};

// Make the children of an element those of a drawing. forward: has the clock gone on, so that what enters travels?
export function patch(parent, nodes, forward, namespace = "http://www.w3.org/2000/svg") {
  const entering = forward ? [] : null; // with where they are going
  update(parent, nodes, namespace, entering);
  if (!entering?.length) return;
  void getComputedStyle(entering.at(-1)[0]).opacity; // their start counts now, without a layout; from here they travel
  for (const [element, node] of entering) assign(element, node.attributes, {});
}

function update(parent, nodes, namespace, entering) {
  if (nodes.length === 0 && parent.firstChild === null) return; // as in most marks
  const old = new Map();
  for (const child of parent.childNodes) old.set(memory.get(child)?.key, child);
  let place = parent.firstChild;
  nodes.forEach((node, at) => {
    const element = typeof node === "object"; // or letters, whose key is never that of an element
    const key = element ? (node.attributes.key ?? `${node.tag} ${at}`) : `letters ${at}`;
    let child = old.get(key);
    if (child !== undefined && child.localName === node.tag)
      old.delete(key); // letters have neither
    else child = create(parent.ownerDocument, node, key, namespace, entering);
    if (element) {
      assign(child, node.attributes, (entering && memory.get(child).fresh && node.attributes.from) || {});
      memory.get(child).fresh = false;
      update(child, node.children, namespace, entering);
    } else if (child.data !== String(node)) {
      child.data = String(node);
    }
    if (child === place) place = place.nextSibling;
    else parent.insertBefore(child, place);
  });
  for (const child of old.values()) child.remove();
}

function create(document, node, key, namespace, entering) {
  const child = typeof node === "object" ? document.createElementNS(namespace, node.tag) : document.createTextNode("");
  memory.set(child, { key, shown: {}, fresh: true });
  if (entering && node.attributes?.from) entering.push([child, node]);
  return child;
}

function assign(element, attributes, first) {
  const now = memory.get(element);
  const wanted = Object.assign(plain(attributes), first);
  for (const name in now.shown) if (!(name in wanted)) element.removeAttribute(name);
  for (const name in wanted) if (now.shown[name] !== wanted[name]) element.setAttribute(name, wanted[name]);
  now.shown = wanted;
  now.tip = attributes.tip;
  now.drag = attributes.drag;
}

function plain(attributes) {
  const kept = {};
  for (const name in attributes) {
    const value = attributes[name];
    if (!SPECIAL.has(name) && value !== undefined && value !== null && value !== false) kept[name] = value;
  }
  if (attributes.tip)
    Object.assign(kept, { "data-tip": "", role: "img", tabindex: "-1", "aria-label": said(attributes.tip) });
  if (attributes.drag) kept["data-drag"] = "";
  if (attributes.drag?.name) Object.assign(kept, { role: "slider", tabindex: "0", "aria-label": attributes.drag.name });
  return kept;
}

// A tip as one sentence after the other.
export function said(tip) {
  return [tip.title, ...(tip.lines ?? []), tip.code].filter(Boolean).join(". ");
}

// The drawing as text, for a page without scripts and for tests.
export function markup(node) {
  if (typeof node !== "object") return escaped(String(node));
  const words = Object.entries(plain(node.attributes)).map(([name, value]) => ` ${name}="${escaped(String(value))}"`);
  return `<${node.tag}${words.join("")}>${node.children.map(markup).join("")}</${node.tag}>`;
}

function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
}
