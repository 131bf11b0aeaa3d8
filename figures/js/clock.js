// The clock of a figure: which steps are events, how long play shows each step, and the step after a control changes.
// words: the sentence of the figure at each step.

const STEP = 1000; // ms for a step, at most
const WHOLE = 12_000; // ms from the first step to the last, at most
const FRAME = 40; // ms for a picture, at least: shorter steps that are no events share a picture
const QUANTITY = /[−\d₀-₉][\d.,₀-₉]*(e−?\d+)?( ?([kMGTP]?i?B|[mµ]?s|min|h|million)\b)?/g;

// The first step of each different sentence, by the sentence without its numbers: the events.
export function events(words) {
  const found = new Map();
  words.forEach((sentence, step) => {
    const plain = sentence.replace(QUANTITY, "#");
    if (!found.has(plain)) found.set(plain, step);
  });
  return found;
}

// How long each step is shown, in ms, and whether it is an event. Events share half of the time. If more than half of
// the steps are events, all steps are shown equally long.
export function schedule(words) {
  const marks = new Set(events(words).values());
  const event = Math.min(STEP, Math.max(WHOLE / words.length, WHOLE / 2 / marks.size));
  const other = Math.min(event, (WHOLE - event * marks.size) / (words.length - marks.size));
  return words.map((_, step) => (marks.has(step) ? { ms: event, event: true } : { ms: other, event: false }));
}

// The step to show next, and for how many ms. pace: 2 is half the speed. Neither an event nor the last step is skipped.
export function ahead(plan, step, pace) {
  let next = step;
  let ms = 0;
  do {
    next += 1;
    ms += pace * plan[next].ms;
  } while (ms < FRAME && !plan[next].event && next < plan.length - 1);
  return { next, ms };
}

// The step of ``to`` for a step of ``from``: at the same share of the way between the nearest events that both have.
// The same step if both have equally many steps.
export function moved(step, from, to) {
  const [last, end] = [from.length - 1, to.length - 1];
  if (last === end || step === 0) return Math.min(step, end);
  if (step >= last) return end;
  const there = events(to);
  let [before, after] = [
    [0, 0],
    [last, end],
  ];
  for (const [plain, here] of events(from)) {
    const other = there.get(plain) ?? -1;
    if (other <= before[1]) continue; // the event is missing there, or comes in another order
    if (here > step) {
      after = [here, other];
      break;
    }
    before = [here, other];
  }
  const way = (step - before[0]) / (after[0] - before[0]);
  return before[1] + Math.floor(way * (after[1] - before[1]));
}

// The last step that is not later than a time.
export const until = (time, times) => times.findLastIndex((one) => one <= time);
