// Light or dark on a page that Sphinx did not write: the choice is that of the other pages, and the button changes it.
{
  const KEY = "theme"; // where Furo keeps the choice
  const CHOICES = ["auto", "light", "dark"];
  const { dataset } = document.body;
  const load = () => {
    try {
      return localStorage.getItem(KEY) ?? "auto";
    } catch {
      return "auto"; // a frame without storage
    }
  };
  const save = () => {
    try {
      localStorage.setItem(KEY, dataset.theme);
    } catch {
      /* the choice holds for this page only */
    }
  };
  dataset.theme = load();
  addEventListener("DOMContentLoaded", () => {
    const button = document.querySelector("header button");
    const show = () => {
      button.textContent = `theme: ${dataset.theme}`;
    };
    button.addEventListener("click", () => {
      dataset.theme = CHOICES[(CHOICES.indexOf(dataset.theme) + 1) % CHOICES.length];
      save();
      show();
    });
    button.hidden = false;
    show();
  });
}
