// A drawing is a tree of plain nodes: a pure function makes it, `patch` puts it on the page, `markup` writes it down.
// A node with a key stays the same element from one drawing to the next, so that its changes can be animated.

// Return a node. Attributes with a meaning of their own: key; tip (what pointing at it shows: {title, lines, code});
// drag (how readers pull it: see hands.js); from (the first attributes of a new element when the clock goes on).
export function h(tag, attributes = {}, ...children) {
  return { tag, attributes, children: gathered(children, []) };
}

// All children of nested lists, without null, undefined and false.
function gathered(children, kept) {
  for (const child of children) {
    if (Array.isArray(child)) gathered(child, kept);
    else if (child !== null && child !== undefined && child !== false) kept.push(child);
  }
  return kept;
}

const SPECIAL = new Set(["key", "tip", "drag", "from"]);
const MEMORY = Symbol("memory"); // of an element: {key, shown, tip, drag}; a property is faster than a WeakMap

// The tip and the drag of an element that `patch` made.
export const about = (element) => element?.[MEMORY] ?? {};

// Make the children of an element those of a drawing. forward: the clock has gone on, so new elements move in.
export function patch(parent, nodes, forward, namespace = "http://www.w3.org/2000/svg") {
  const entering = forward ? [] : null; // new elements with their nodes, the ends of their ways
  update(parent, nodes, namespace, entering);
  if (!entering?.length) return;
  void getComputedStyle(entering.at(-1)[0]).opacity; // fixes their starts without a layout; then they move
  for (const [element, node] of entering) assign(element, node.attributes);
}

function update(parent, nodes, namespace, entering) {
  if (nodes.length === 0 && parent.firstChild === null) return; // as for most marks
  let last = null; // the last child that is in its place
  let others = null; // the children after it by key, as soon as one is not in its place
  const next = () => (last === null ? parent.firstChild : last.nextSibling);
  const keys = keysOf(nodes);
  nodes.forEach((node, at) => {
    const key = keys[at];
    if (others === null && !shows(next(), node, key)) others = kept(next(), new Set(keys.slice(at)));
    const place = next();
    let child = shows(place, node, key) ? place : others.get(key);
    if (shows(child, node, key)) others?.delete(key);
    else child = create(parent.ownerDocument, node, key, namespace, entering);
    if (typeof node === "object") {
      const mine = child[MEMORY];
      assign(child, node.attributes, entering && mine.fresh ? node.attributes.from : undefined);
      mine.fresh = false;
      update(child, node.children, namespace, entering);
    } else if (child.data !== String(node)) {
      child.data = String(node);
    }
    if (child !== place) parent.insertBefore(child, place);
    last = child;
  });
  if (others === null) while (next()) next().remove();
  else for (const child of others.values()) child.remove();
}

// The names of siblings: the key, or else the tag with a number. For text the tag is "letters", which no element has.
function keysOf(nodes) {
  const counts = {};
  return nodes.map((node) => {
    const [tag, key] = typeof node === "object" ? [node.tag, node.attributes.key] : ["letters"];
    if (key !== undefined) return key;
    counts[tag] = (counts[tag] ?? 0) + 1;
    return `${tag} ${counts[tag]}`;
  });
}

// Whether this child is that of a node. (Text has no tag and no name.)
const shows = (child, node, key) => about(child).key === key && child.localName === node.tag;

// The children from ``first`` on whose keys are wanted, by key. All others are removed now, so that none has to move.
function kept(first, wanted) {
  const found = new Map();
  for (let child = first; child !== null; ) {
    const following = child.nextSibling;
    const { key } = about(child);
    if (wanted.has(key)) found.set(key, child);
    else child.remove();
    child = following;
  }
  return found;
}

function create(document, node, key, namespace, entering) {
  const child = typeof node === "object" ? document.createElementNS(namespace, node.tag) : document.createTextNode("");
  child[MEMORY] = { key, shown: {}, fresh: true };
  if (entering && node.attributes?.from) entering.push([child, node]);
  return child;
}

function assign(element, attributes, first) {
  const now = element[MEMORY];
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
    Object.assign(kept, { "data-tip": "", role: "img", tabindex: "-1", "aria-label": textOf(attributes.tip) });
  if (attributes.drag) kept["data-drag"] = "";
  if (attributes.drag?.name) Object.assign(kept, { role: "slider", tabindex: "0", "aria-label": attributes.drag.name });
  return kept;
}

// A tip as text: one sentence after the other.
export function textOf(tip) {
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
