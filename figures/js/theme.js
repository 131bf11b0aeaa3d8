// Light or dark, as in JupyterLab, the page or the system, now and after each change. (A page may say "auto".)
export function wearing(whole) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dress = () => {
    const { jpThemeLight, theme = document.documentElement.dataset.theme } = document.body.dataset;
    const name = { true: "light", false: "dark" }[jpThemeLight] ?? { light: "light", dark: "dark" }[theme];
    whole.dataset.theme = name ?? (system.matches ? "dark" : "light");
  };
  dress();
  system.addEventListener("change", dress);
  const watch = new MutationObserver(dress);
  for (const page of [document.body, document.documentElement]) {
    watch.observe(page, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-theme"] });
  }
}
