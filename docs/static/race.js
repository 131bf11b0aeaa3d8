// The race on the front page: the figure plays once by itself, with the same number of bytes per second for all runs.
// Its controls are folded below it, and each of them stops the race. Readers who prefer reduced motion see the end at
// once; readers whose address has a state see that state.
{
  const MS = 8000;
  const LEAP = 100; // ms for a picture, at most: a page that was hidden goes on where it was
  const race = document.querySelector(".race");
  const button = race.querySelector("button");
  const host = race.querySelector("[data-figure]");
  const clock = JSON.parse(race.dataset.clock);
  const figure = globalThis.flashlab.figures[host.id][0];
  const part = (name) => host.shadowRoot.querySelector(name);
  const head = part(".head");
  const change = Object.assign(document.createElement("button"), { type: "button", textContent: "controls" });
  change.style.marginBlock = "10px 6px";
  const ways = document.querySelectorAll(".begin details");
  const last = clock.length - 1;
  const isState = () => location.hash.startsWith("#tiling?");
  const { play } = figure.parts;
  const { show } = play;
  let playing = false; // started by either button
  let passed = 0; // ms
  let before = 0;
  let running = 0;

  // The step of the race that the figure shows; undefined if the figure has other settings than the race.
  const stepNow = () => {
    const { step, ...settings } = figure.state;
    return Object.entries(settings).every(([field, value]) => figure.data.state[field] === value) ? step : undefined;
  };
  // Show the result of the race while the figure shows its end.
  const tell = () => {
    const step = stepNow();
    race.dataset.state = playing ? "running" : step === last ? "over" : "held";
    button.textContent = playing ? "pause" : step < last ? "play" : "play again";
    part(".words").ariaLive = playing ? "off" : "polite";
  };
  const frame = (now) => {
    if (figure.playing !== "race") return;
    passed += Math.max(0, Math.min(now - before, LEAP)); // a frame may have begun before the race
    before = now;
    const bytes = clock[last] * Math.min(passed / MS, 1);
    const step = clock.findLastIndex((moved) => moved <= bytes);
    if (step !== figure.state.step) figure.set({ step });
    if (step === last) return figure.stop();
    running = requestAnimationFrame(frame);
  };
  // For the figure the race is its own play, so its play button and each change of state stop it.
  const run = () => {
    const from = stepNow() < last ? figure.state.step : 0;
    figure.set({ ...figure.data.state, step: from });
    passed = (MS * clock[from]) / clock[last];
    before = performance.now();
    cancelAnimationFrame(running);
    running = requestAnimationFrame(frame);
    figure.playing = "race";
    play.show(true);
  };

  const unfold = (open) => {
    head.hidden = !open;
    change.setAttribute("aria-expanded", open);
  };

  // The ways through the course cover the race, as menus do.
  const closeWays = () => {
    for (const way of ways) way.open = false;
  };
  for (const way of ways) way.addEventListener("toggle", () => way.open && figure.stop());
  addEventListener("click", ({ target }) => target.closest?.(".begin details") ?? closeWays());
  addEventListener("keydown", ({ key }) => {
    if (key !== "Escape") return;
    document.querySelector(".begin [open] summary")?.focus();
    closeWays();
  });

  play.show = (on) => {
    show(on);
    playing = on;
    tell();
  };
  host.addEventListener("flashlab-shown", tell);
  change.addEventListener("click", () => unfold(head.hidden));
  button.addEventListener("click", () => (playing ? figure.stop() : run()));
  button.hidden = false;
  part(".flashlab").append(change, head);
  addEventListener("hashchange", () => isState() && unfold(true));
  const brought = isState();
  unfold(brought);
  // The words are for screen readers only: the picture shows the rest.
  Object.assign(part(".words").style, { position: "absolute", clipPath: "inset(50%)" });
  if (brought) tell();
  else if (matchMedia("(prefers-reduced-motion: reduce)").matches) figure.set({ step: last });
  else {
    figure.set({ step: 0 });
    run();
  }
}
