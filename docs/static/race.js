// The race on the front page: the figure plays once by itself, the same number of bytes per second for all. Its
// controls are folded below it, and wait until then. Who asked for less motion, or brought a state along, sees the end
// at once.
{
  const MS = 8000;
  const LEAP = 100; // ms a picture, at most: a page that was hidden goes on where it was
  const race = document.querySelector(".race");
  const button = race.querySelector("button");
  const host = race.querySelector("[data-figure]");
  const clock = JSON.parse(race.dataset.clock);
  const figure = globalThis.flashlab.figures[host.id][0];
  const part = (name) => host.shadowRoot.querySelector(name);
  const head = part(".head");
  const change = Object.assign(document.createElement("button"), { type: "button", textContent: "controls" });
  change.style.marginBlock = "10px 6px";
  const last = clock.length - 1;
  const isState = () => location.hash.startsWith("#tiling?");
  let passed = 0; // ms
  let before = 0;
  let running = 0;

  const say = (words) => {
    button.textContent = words;
  };
  const rest = (words) => {
    cancelAnimationFrame(running);
    running = 0;
    say(words);
  };
  const over = () => {
    rest("play again");
    passed = 0;
    race.dataset.state = "over";
    change.disabled = false;
    part(".words").ariaLive = "polite";
  };
  const frame = (now) => {
    passed += Math.max(0, Math.min(now - before, LEAP)); // a frame may have begun before its run
    before = now;
    const bytes = clock[last] * Math.min(passed / MS, 1);
    const step = clock.findLastIndex((moved) => moved <= bytes);
    if (step !== figure.state.step) figure.set({ step }, step === figure.state.step + 1);
    if (step === last) return over();
    running = requestAnimationFrame(frame);
  };
  const run = () => {
    if (passed === 0) figure.set({ step: 0 });
    race.dataset.state = "running";
    before = performance.now();
    running = requestAnimationFrame(frame);
    say("pause");
  };

  const unfold = (open) => {
    head.hidden = !open;
    change.setAttribute("aria-expanded", open);
  };

  change.addEventListener("click", () => unfold(head.hidden));
  button.addEventListener("click", () => (running ? rest("play") : run()));
  button.hidden = false;
  part(".flashlab").append(change, head);
  addEventListener("hashchange", () => {
    if (!isState()) return;
    unfold(true);
    if (running) over();
  });
  const brought = isState();
  unfold(brought);
  // For listeners: all else is seen.
  Object.assign(part(".words").style, { position: "absolute", clipPath: "inset(50%)" });
  if (brought || matchMedia("(prefers-reduced-motion: reduce)").matches) {
    if (!brought) figure.set({ step: last });
    over();
  } else {
    change.disabled = true;
    part(".words").ariaLive = "off";
    run();
  }
}
