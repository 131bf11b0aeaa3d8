// A button on every piece of code: it copies the text, or selects it if the browser grants no clipboard.
{
  let last;
  const say = (button, words) => {
    if (last) last.textContent = "copy";
    button.textContent = words;
    last = button;
  };
  const copy = async (button, code) => {
    try {
      await navigator.clipboard.writeText(code.textContent.trimEnd());
      say(button, "copied");
    } catch {
      // no clipboard: an address without https, or a refusal
      getSelection().selectAllChildren(code);
      say(button, "selected");
    }
  };
  for (const code of document.querySelectorAll("[class*='highlight-']:not(.output) > .highlight > pre")) {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", className: "copy", textContent: "copy", ariaLive: "polite" });
    button.addEventListener("click", () => copy(button, code));
    code.before(button);
  }
}
