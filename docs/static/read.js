// Scroll the sidebar to this page. Mark the lessons that were read to their end, there and on the map; only the browser
// keeps their names.
{
  const KEY = "flashlab-read";
  const LESSON = /lessons\/\d\d_(\w+)\.html$/;
  const nameOf = (address) => LESSON.exec(address.split(/[?#]/)[0])?.[1];
  const load = () => {
    try {
      return JSON.parse(localStorage.getItem(KEY)) ?? [];
    } catch {
      // no storage, or what another page stored
      return [];
    }
  };
  const save = (names) => {
    try {
      localStorage.setItem(KEY, JSON.stringify(names));
    } catch {
      /* the browser stores nothing */
    }
    show();
  };

  const tree = document.querySelector(".sidebar-tree");
  const pane = tree.closest(".sidebar-scroll");
  const place = tree.querySelector(".current-page")?.getBoundingClientRect(); // the place of this page in the list
  const above = place ? place.top - pane.getBoundingClientRect().top - pane.clientHeight / 2 : 0;
  pane.scrollBy({ top: above, behavior: "instant" }); // otherwise the theme scrolls smoothly on every page

  const listed = [...tree.querySelectorAll("a")].filter((link) => nameOf(link.href));
  const count = document.createElement("span");
  const clear = Object.assign(document.createElement("button"), { type: "button", textContent: "clear" });
  const line = Object.assign(document.createElement("p"), { className: "read-count" });
  clear.addEventListener("click", () => save([]));
  line.append(count, " ", clear);
  tree.prepend(line);

  function show() {
    const read = load();
    for (const link of [...listed, ...document.querySelectorAll(".lessons > a")]) {
      const isRead = read.includes(nameOf(link.href));
      link.querySelector(":scope > .read")?.remove();
      if (isRead)
        link.append(Object.assign(document.createElement("span"), { className: "read", textContent: " ✓ read" }));
    }
    const done = listed.filter((link) => read.includes(nameOf(link.href))).length;
    count.textContent = `${done} of ${listed.length} lessons read`;
    line.hidden = done === 0;
  }

  const here = nameOf(location.pathname);
  const end = document.querySelector(".related-pages");
  if (here && end) {
    new IntersectionObserver(([entry]) => {
      if (entry.isIntersecting) save([...new Set([...load(), here])]);
    }).observe(end);
  }
  addEventListener("storage", show); // when another tab has marked a lesson
  show();
}
