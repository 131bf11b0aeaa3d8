// The links of the 404 page have the address of the site. If the site is served from another address, replace it by
// that. A missing page is in the folder of the site, or in one of the folders there.
{
  const home = new URL(".", document.querySelector("header a").href).href;
  const here = location.href.split(/[?#]/)[0];
  const root = here.startsWith(home) ? home : here.replace(/(?<=\/)((lessons|figures|interface)\/)?[^/]*$/, "");
  for (const link of document.querySelectorAll("a")) link.href = link.href.replace(home, root);
}
