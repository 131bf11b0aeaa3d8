// Numbers as words, the same as in the kernel's sentences.

const UNITS = [
  ["PB", 1e15],
  ["TB", 1e12],
  ["GB", 1e9],
  ["MB", 1e6],
  ["kB", 1e3],
];

// Bytes in decimal units: 1 MB is 10^6 bytes.
export function amount(bytes) {
  const found = UNITS.find(([, size]) => Math.abs(bytes) >= size);
  return found ? `${digits(bytes / found[1], 3)} ${found[0]}` : `${Math.round(bytes)} B`;
}

// Memory on a chip in binary units.
export function room(bytes, count = 3) {
  const [unit, size] = [
    ["TiB", 2 ** 40],
    ["GiB", 2 ** 30],
    ["MiB", 2 ** 20],
    ["KiB", 2 ** 10],
  ].find(([, size]) => bytes >= size) ?? ["KiB", 2 ** 10];
  return `${digits(bytes / size, count)} ${unit}`;
}

// A number in at most so many digits, no zeros at its end; null is minus infinity.
export function digits(value, count = 4) {
  if (value === null) return "−∞";
  const rounded = Number(value.toPrecision(count));
  const words =
    Math.abs(rounded) >= 1e6 || (rounded !== 0 && Math.abs(rounded) < 1e-4) ? rounded.toExponential() : String(rounded);
  return words.replaceAll("-", "−");
}

// A count with commas between its thousands. (Number.toLocaleString looks up the language each time: 10 us.)
const GROUPS = new Intl.NumberFormat("en");
export const grouped = (count) => GROUPS.format(count);

// 1 time, 2 times.
export const times = (count, thing = "time") => `${grouped(count)} ${thing}${count === 1 ? "" : "s"}`;

// Whether a text fits into a width, at a size in pixels. A point is half as wide as a digit.
export const fits = (text, width, size) => (text.length - text.split(".").length / 2 + 0.5) * size * 0.58 <= width;

// The pieces of a sentence as [words, field]: [128 keys](N) is a number of the control N, other words have no field.
export function pieces(sentence) {
  const found = sentence.split(/\[([^\]]*)\]\((\w+)\)/); // words, number, field, words, number, field, ..., words
  return found.flatMap((words, at) => (at % 3 === 2 || !words ? [] : [[words, at % 3 ? found[at + 1] : undefined]]));
}

// A text in lines that fit into a width.
export function wrapped(text, width, size) {
  const rows = [""];
  for (const word of text.split(" ")) {
    const longer = rows.at(-1) ? `${rows.at(-1)} ${word}` : word;
    if (fits(longer, width, size) || rows.at(-1) === "") rows[rows.length - 1] = longer;
    else rows.push(word);
  }
  return rows;
}
