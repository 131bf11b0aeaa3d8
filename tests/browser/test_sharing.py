"""Every page of the site has what sharing, search, citation and reports of mistakes need. No browser is needed."""

import html
import re
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from PIL import Image

from docs import lessons, sharing
from tests.browser.lab import ROOT


@pytest.fixture(scope="module")
def pages(site):
    """Return {path: text} of all pages but 404.html."""
    texts = {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert len(texts) > 60
    return {path: text for path, text in texts.items() if path != "404.html"}


def meta(text):
    """Return the ``meta`` elements of a page, {name: [content]}."""
    contents = {}
    for name, content in re.findall(r'<meta (?:name|property)="([^"]+)" content="([^"]*)">', text):
        contents.setdefault(name, []).append(html.unescape(content))
    return contents


def test_every_page_has_one_card_with_a_picture_of_the_site(pages, site):
    for path, text in pages.items():
        card = {
            name: content for name, (content,) in meta(text).items() if name.startswith(("og:", "desc", "twitter:"))
        }
        assert card["description"] == card["og:description"] and card["twitter:card"] == "summary_large_image", path
        assert 10 < len(card["description"]) <= sharing.LONGEST + 2 and card["og:title"] and card["og:image:alt"], path
        assert card["og:image"].startswith(sharing.ADDRESS), path
        with Image.open(site / card["og:image"].removeprefix(sharing.ADDRESS)) as picture:
            assert picture.width >= 600, path
        assert re.search("<title>(.*?)</title>", text)[1] != "flashlab"


def test_descriptions_are_words_and_differ_from_lesson_to_lesson(pages):
    descriptions = {path: meta(text)["description"][0] for path, text in pages.items()}
    assert [path for path, words in descriptions.items() if re.search(r"[<>*$]|\[.*\]\(", words)] == []
    of_lessons = [descriptions[f"lessons/{name.replace('.ipynb', '.html')}"] for name in lessons.names()]
    assert len(set(of_lessons)) == len(of_lessons)
    assert all(words.startswith("At the end") for words in of_lessons[:-1])


def test_the_alt_text_of_the_shared_picture_describes_no_state_of_a_figure(pages):
    assert [meta(pages[path])["og:image:alt"] for path in ("index.html", "about.html")] == [[sharing.SHOWN]] * 2
    assert meta(pages["lessons/06_tiling.html"])["og:image:alt"] != [sharing.SHOWN]


def test_every_page_names_its_one_address_and_the_map_for_crawlers_lists_it(pages, site):
    listed = re.findall("<loc>(.*?)</loc>", (site / "sitemap.xml").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(sharing.address(path) for path in pages if path not in sharing.UNLISTED)
    assert f"Sitemap: {sharing.ADDRESS}sitemap.xml\n" in (site / "robots.txt").read_text(encoding="utf-8")
    for path, text in pages.items():
        assert re.findall('<link rel="canonical" href="([^"]*)"', text) == [sharing.address(path)]
        assert meta(text)["og:url"] == [sharing.address(path)]


def test_every_page_has_an_icon_and_leads_to_a_report_with_its_title(pages, site):
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/lesson.yml").read_text(encoding="utf-8"))
    for path, text in pages.items():
        (icon,) = re.findall(r'<link rel="icon"[^>]* href="([^"]*)"', text)
        assert (site / path).parent.joinpath(icon).is_file(), path
        (link,) = re.findall(r'<a href="([^"]*)">Report a mistake</a>', text)
        query = parse_qs(urlsplit(html.unescape(link)).query)
        assert query["template"] == ["lesson.yml"] and form["body"], path
        assert query["title"][0].removesuffix(": ") == meta(text)["og:title"][0], path


def test_every_page_with_a_footer_leads_to_how_to_cite(pages):
    assert [path for path, text in pages.items() if "<footer" in text and "about.html" not in text] == []


def test_the_page_for_missing_pages_works_from_any_folder(site):
    text = (site / "404.html").read_text(encoding="utf-8")
    links = re.findall(r'(?:href|src)="([^"]*)"', text)
    assert f"{sharing.ADDRESS}index.html" in links and all(
        link.startswith(("https://", "data:image/svg+xml,")) for link in links
    )
    assert 'content="noindex"' in text and 'rel="icon"' in text
    assert 'rel="stylesheet"' not in text and "<script src" not in text
