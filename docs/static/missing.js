// The page for missing ones knows the address of the site. Where the site is served from another one, its links lead
// into that. The missing page has its place in the folder of the site, or in one of the folders there.
{
  const home = new URL(".", document.querySelector("header a").href).href;
  const here = location.href.split(/[?#]/)[0];
  const root = here.startsWith(home) ? home : here.replace(/(?<=\/)((lessons|figures|interface)\/)?[^/]*$/, "");
  for (const link of document.querySelectorAll("a")) link.href = link.href.replace(home, root);
}
