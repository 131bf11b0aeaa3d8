"""Additions to pages, for sharing and searching: descriptions, cards, addresses, an icon, a site map; and report links.

``add`` changes every page of a built site in the same way, whether Sphinx or ``drawn`` wrote it.
"""

import html
import re
from pathlib import Path
from urllib.parse import urlencode

from docs import bare, drawn, front, gallery
from docs.lessons import REPOSITORY
from flashlab.course.lessons import LESSONS

ADDRESS = f"{gallery.SITE}/"
NAME = bare.TITLE
RACE = "tiling"  # the figure of the front page; pages without a figure show its picture, too
SHOWN = (  # the alternative text of that picture
    "Standard attention and two versions of FlashAttention, side by side: maps of their scores, of which only standard "
    "attention's lie in slow memory, and the bytes that each has moved."
)
UNLISTED = ("404.html", "genindex.html", "py-modindex.html", "search.html")  # pages that no crawler needs
LONGEST = 200  # characters of a description
SAYS = {  # descriptions of pages whose first paragraph does not give one
    "about.html": "How to cite the course, how to report a mistake in it, and its licence.",
    "figures.html": "All figures of the course: traces of code that ran, with controls to play and change them.",
    "genindex.html": "All names of the code, in the order of the alphabet.",
    "interface.html": "The public functions and classes of the course's code, with docstrings and links to the source.",
    "lessons/notation.html": "The letters and the terms of the course, each with the lesson that introduces it.",
    "measurements.html": "Every stored measurement of attention kernels, with its device, versions, date and command.",
    "py-modindex.html": "All modules of the code, in the order of the alphabet.",
    "search.html": "Search the lessons, the figures and the interface of the code.",
    "set_up.html": "How to run the course on your machine, in Google Colab or in a Codespace, and what each takes.",
}
PARAGRAPH = re.compile(r"<p\b[^>]*>(.*?)</p>", re.DOTALL)
MISSING = f"""<h1>There is no such page</h1>
<p>Lessons are renamed, and pages move. <a href="{ADDRESS}index.html">The front page</a> has the map of all lessons, and
<a href="{ADDRESS}search.html">the search</a> finds words.</p>
<script>
{bare.static("missing.js")}</script>
"""


def add(site: Path):
    """Add to each page of ``site`` its description, card, address, icon and report; write the files for crawlers."""
    unlisted = '<meta name="robots" content="noindex">\n'
    missing = bare.page("There is no such page - flashlab", MISSING, ADDRESS, unlisted, alone=True)
    (site / "404.html").write_text(missing, encoding="utf-8")
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    for page in pages:
        text = (site / page).read_text(encoding="utf-8")
        if page == "index.html":
            text = re.sub("<title>.*?</title>", f"<title>{NAME}</title>", text, count=1)
        (site / page).write_text(_shared(page, text), encoding="utf-8")
    listed = "".join(f"<url><loc>{address(page)}</loc></url>\n" for page in pages if page not in UNLISTED)
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n'
    (site / "sitemap.xml").write_text(f"{head}{listed}</urlset>\n", encoding="utf-8")
    (site / "robots.txt").write_text(f"User-agent: *\nAllow: /\nSitemap: {ADDRESS}sitemap.xml\n", encoding="utf-8")


def address(page: str) -> str:
    """Return the canonical address of a page. That of the front page is the folder."""
    return ADDRESS + ("" if page == "index.html" else page)


def description(page: str, text: str) -> str:
    """Return what a page is about: what a lesson leads to, the sentence of a figure, or else the first paragraph."""
    if page in SAYS:
        return SAYS[page]
    if page.startswith("figures/"):
        source = drawn.sentence(Path(page).stem)
    else:
        paragraphs = PARAGRAPH.findall(text[text.find("<article") :])
        ends = [it for it in paragraphs if it.startswith("<strong>At the end</strong>")]
        source = next(iter(ends + paragraphs), "")
    words = " ".join(html.unescape(re.sub(r"<[^>]*>", "", source)).split()) or f"{_title(text)}: a page of {NAME}."
    return words if len(words) <= LONGEST else words[:LONGEST].rsplit(" ", 1)[0] + " …"


def picture(page: str) -> str | None:
    """Return the name of a page's figure: its own, or the first of its lesson; None without one."""
    if page.startswith("figures/"):
        return Path(page).stem
    shown = (drawn.shown_by(it) for it in LESSONS if page == f"lessons/{front.page_of(it)}")
    return next((names[0] for names in shown if names), None)


def report(text: str) -> str:
    """Return the address at which a mistake on a page is reported; it carries the title of the page."""
    return f"{REPOSITORY}/issues/new?{urlencode({'template': 'lesson.yml', 'title': f'{_title(text)}: '})}"


def _shared(page, text):
    root = "../" * page.count("/")
    if page != "404.html":
        text = text.replace("</head>", f"{_card(page, text, root)}</head>", 1)
    cite = f'<a href="{root}about.html">Cite</a>'
    mistake = f'<a href="{html.escape(report(text))}">Report a mistake</a>'
    for place, more in {
        '<div class="right-details">': f'<div class="right-details">{cite} {mistake}',
        "</main>\n</body>": f"<p>{mistake}</p>\n</main>\n</body>",
    }.items():
        text = text.replace(place, more)
    return text


def _card(page, text, root):
    name = picture(page)
    figure = name and drawn.figure(name)
    meta = {"description": description(page, text), "twitter:card": "summary_large_image"}
    graph = {
        "title": _title(text),
        "description": meta["description"],
        "type": "article" if page.startswith("lessons/") else "website",
        "site_name": NAME,
        "url": address(page),
        "image": f"{ADDRESS}figures/{name or RACE}.png",
        "image:alt": figure.describe(figure.State()) if figure else SHOWN,
    }
    lines = [f'<meta name="{name}" content="{html.escape(words)}">' for name, words in meta.items()]
    lines += [f'<meta property="og:{name}" content="{html.escape(words)}">' for name, words in graph.items()]
    lines += [f'<link rel="canonical" href="{address(page)}">']
    lines += [f'<link rel="icon" type="image/svg+xml" href="{root}_static/favicon.svg">']
    return "\n".join(lines) + "\n"


def _title(text):
    return html.unescape(re.search("<title>(.*?)</title>", text, re.DOTALL)[1]).strip().removesuffix(" - flashlab")
