"""The site, built as `make site` builds it and opened from its files: every page, wide and light, narrow and dark."""

import http.server
import re
import threading
from functools import cache, partial
from importlib.metadata import version
from urllib.parse import unquote, urlsplit

import html5lib
import pytest

from docs import drawn, lessons, pages, panels
from flashlab.course import lessons as course
from flashlab.course.data import NOTEBOOKS
from tests.browser.conftest import SCREENSHOTS, UNPACKED
from tests.browser.lab import SECONDS
from tests.browser.test_axe import AXE, FOUND

LESSONS = [f"lessons/{name.removesuffix('.ipynb')}.html" for name in lessons.names()]
OTHERS = ["index.html", "figures.html", "embed.html", "measurements.html", "interface.html"]
OTHERS += [f"{name}.html" for name in pages.WRITTEN]
OTHERS += ["interface/kernels.html", "interface/kernels.hopper.html", "404.html"]
FIGURES = [f"figures/{name}.html" for name in drawn.names()]
CHARTS = [
    name.removesuffix(".ipynb") for name in lessons.names() if "flashlab-chart" in (NOTEBOOKS / name).read_text("utf-8")
]
LOOKS = {"wide": (1280, "light"), "narrow": (390, "dark")}
WIDTHS = (360, 390, 768, 1024, 1280, 1920, 2560)
INSIDE = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
HOST = "[data-figure]"
WHOLE = "it => getComputedStyle(it).overflowX === 'visible' || it.scrollWidth <= it.clientWidth"
WEARS = "theme => document.querySelector('[data-figure]').shadowRoot.querySelector('.flashlab').dataset.theme === theme"


@pytest.fixture(params=LOOKS)
def look(request):
    return request.param


@pytest.fixture
def opened(browser, site):
    """Return a function that opens a page of the site; its ``faults`` lists errors and requests to other places."""
    contexts = []

    def open(path, look="wide", **options):
        width, scheme = LOOKS[look]
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options))
        contexts[-1].set_default_timeout(1000 * SECONDS)
        sheet = contexts[-1].new_page()
        sheet.faults = []
        sheet.on("pageerror", lambda error: sheet.faults.append(str(error)))
        sheet.on("request", lambda request: None if ours(request.url) else sheet.faults.append(request.url))
        sheet.goto(path if "://" in path else f"{site.as_uri()}/{path}")
        if options.get("java_script_enabled", True):
            sheet.evaluate(UNPACKED)
        return sheet

    def ours(url):
        return url.startswith((site.as_uri(), "data:", "blob:", "http://127.0.0.1:"))

    yield open
    for context in contexts:
        context.close()


@pytest.mark.parametrize("path", LESSONS + OTHERS + FIGURES)
def test_a_page_fits_and_has_no_error_and_no_request_to_other_places(opened, path, look):
    sheet = opened(path, look)
    for host in sheet.locator(HOST).all():
        host.locator("svg").first.wait_for()
    SCREENSHOTS.mkdir(exist_ok=True)
    sheet.screenshot(path=SCREENSHOTS / f"site-{path.replace('/', '-').removesuffix('.html')}-{look}.png")
    assert sheet.faults == []
    assert sheet.evaluate(INSIDE)
    if AXE.exists():
        sheet.evaluate(AXE.read_text(encoding="utf-8"))
        assert sheet.evaluate(FOUND) == []


@pytest.mark.parametrize("path", LESSONS + OTHERS)
def test_no_page_scrolls_sideways(opened, path):
    sheet = opened(path)
    for width in WIDTHS:
        sheet.set_viewport_size({"width": width, "height": 900})
        assert sheet.evaluate(INSIDE), width


@pytest.mark.parametrize("width", [360, 390, 768, 1024, 1280, 1440, 1920])
def test_a_figure_may_be_wider_than_the_text_but_not_than_its_place(opened, width):
    """The figure covers neither the table of contents at the right nor the edge of the window."""
    sheet = opened("lessons/06_tiling.html")
    sheet.set_viewport_size({"width": width, "height": 900})
    figure = sheet.locator(HOST)
    figure.locator("svg").first.wait_for()
    box, contents = figure.bounding_box(), sheet.locator(".toc-drawer").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= contents["x"]
    assert sheet.evaluate(INSIDE)
    assert (width < 1280) or box["width"] > 756  # the parts stand side by side


@pytest.mark.parametrize("path", ["index", "figures", "lessons/01_memory_hierarchy", "lessons/12_triton_backward"])
def test_a_printed_page_has_no_navigation_and_cuts_nothing(opened, path):
    sheet = opened(f"{path}.html")
    sheet.emulate_media(media="print")
    sheet.set_viewport_size({"width": 680, "height": 1000})  # A4 without its margins
    assert not sheet.locator(".skip-to-content, .sidebar-drawer, .related-pages, .copy").filter(visible=True).count()
    assert sheet.evaluate(INSIDE)
    for part in sheet.locator(f"{HOST}, article img, article pre, article table").all():
        if box := part.bounding_box():
            assert box["x"] >= 0 and box["x"] + box["width"] <= 680 and part.evaluate(WHOLE), part


def test_a_lesson_counts_as_read_at_its_end_until_that_is_cleared(opened):
    sheet = opened("lessons/06_tiling.html")
    marks, line = sheet.locator(".sidebar-tree .read"), sheet.locator(".read-count")
    assert marks.count() == 0 and not line.is_visible()
    sheet.locator(".related-pages").scroll_into_view_if_needed()
    marks.wait_for()
    assert line.inner_text() == f"1 of {len(LESSONS) - 1} lessons read clear"
    sheet.goto(sheet.url.replace("lessons/06_tiling", "index"))
    assert sheet.locator(".lessons > a:has(.read)").get_attribute("href") == "lessons/06_tiling.html"
    assert "Tiling" in sheet.locator(".sidebar-tree li:has(.read)").inner_text()
    line.get_by_role("button").click()
    sheet.reload()
    assert sheet.locator(".read").count() == 0 and not line.is_visible() and sheet.faults == []


@pytest.mark.parametrize("path", ["lessons/00_start_here", "lessons/24_next_machine", "about"])
def test_the_sidebar_shows_the_place_of_the_page(opened, path):
    sheet = opened(f"{path}.html")
    pane = sheet.locator(".sidebar-scroll").bounding_box()
    entry = sheet.locator(".sidebar-tree .current-page > a").bounding_box()
    assert pane["y"] <= entry["y"] and entry["y"] + entry["height"] <= pane["y"] + pane["height"]


def test_the_typefaces_come_with_the_site(opened, site):
    sheet = opened("lessons/06_tiling.html")
    loaded = sheet.evaluate("document.fonts.ready.then(all => [...all].filter(one => one.status === 'loaded').length)")
    assert loaded >= 3
    notes = {path.stem.removesuffix("-licence") for path in (site / "_static").glob("*-licence.txt")}
    fonts = {path.stem for path in (site / "_static").glob("*.woff2")}
    assert {re.sub("_.*|-", "", name).lower() for name in fonts} == {name.replace("-", "") for name in notes}


def test_every_page_is_valid_html_and_every_link_leads_somewhere(site):
    broken = []
    for path in sorted(site.rglob("*.html")):
        parser = html5lib.HTMLParser()
        tree = parser.parse(path.read_text(encoding="utf-8"))
        broken += [(path.name, error) for error in parser.errors]
        broken += [(path.name, link) for link in links(tree) if not leads(site, path, link)]
    assert broken == []


def test_a_lessons_page_has_the_title_of_the_list_of_lessons_and_one_link_to_each_neighbour(site):
    for lesson in course.LESSONS:
        text = (site / "lessons" / course.notebook(lesson).replace(".ipynb", ".html")).read_text(encoding="utf-8")
        heading = re.search("<h1>(.*?)<a", text)[1]
        assert heading == f"{course.number(lesson):02} · {lesson.title}"
        assert f"<title>{heading} - flashlab</title>" in text
        assert text.count('class="next-page"') == 1 and "#The-map" not in text, heading


def links(tree):
    named = {"a": "href", "link": "href", "img": "src", "script": "src"}
    for element in tree.iter():
        link = element.get(named.get(str(element.tag).rpartition("}")[2], ""))
        if link and not urlsplit(link).scheme:
            yield link


def leads(site, path, link):
    parts = urlsplit(link)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if parts.path.endswith("/") or not target.is_file() or not target.is_relative_to(site.resolve()):
        return False
    return not parts.fragment or target.suffix != ".html" or unquote(parts.fragment) in names(target)


@cache
def names(path):
    return set(re.findall(r'\b(?:id|name)="([^"]+)"', path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", ["lessons/06_tiling.html", "figures/tiling.html"])
def test_a_figure_answers_keyboard_mouse_and_touch(opened, path):
    sheet = opened(path, has_touch=True)
    host = sheet.locator(HOST)
    clock = host.locator("input[type=range][data-field]").last
    start = int(clock.input_value())
    clock.press("ArrowRight")
    host.get_by_role("button", name="forward").or_(host.locator("button", has_text="▶")).first.click()
    host.locator("button", has_text="▶").first.tap()
    assert int(clock.input_value()) == start + 3 and sheet.faults == []


def test_an_address_keeps_the_state(opened):
    sheet = opened("figures/tiling.html")
    clock = sheet.locator("input[type=range][data-field]").last
    clock.press("ArrowRight")
    sheet.get_by_role("button", name=re.compile("link")).first.click()
    again = opened(sheet.url)
    assert "#" in sheet.url
    assert again.locator("input[type=range][data-field]").last.input_value() == clock.input_value()
    again.evaluate("location.hash = '#tiling?step=3&Br=64'")  # edited in the same tab
    again.wait_for_function("flashlab.figures['figure-tiling'][0].state.step === 3")
    assert again.locator("[data-field=Br]").get_attribute("aria-valuetext") == "64" and again.faults == []


@pytest.mark.parametrize("path", LESSONS + OTHERS + FIGURES)
def test_without_scripts_there_are_pictures_words_and_formulas(opened, path):
    sheet = opened(path, "narrow", java_script_enabled=False)
    hosts = sheet.locator(HOST).all()
    assert sheet.locator("h1").is_visible() and (hosts or path not in [*FIGURES, "index.html"])
    for host in hosts:
        picture = host.locator("img")
        assert picture.is_visible() and picture.get_attribute("alt") and host.locator("figcaption").inner_text()
        assert picture.evaluate("it => it.naturalWidth") > 0
    words = re.sub(r"<(code|pre|script|style|title)\b.*?</\1>|<[^>]*>", "", sheet.content(), flags=re.DOTALL)
    assert "$" not in words  # every formula is typeset


def test_charts_and_figures_follow_the_theme_that_the_reader_chose(opened, look):
    sheet = opened("lessons/06_tiling.html", look)
    sheet.locator(f"{HOST} svg").first.wait_for()
    chart = sheet.locator(".flashlab-chart svg").first
    chart.wait_for()
    for choice, theme in {"auto": LOOKS[look][1], "dark": "dark", "light": "light"}.items():
        sheet.evaluate("theme => { document.body.dataset.theme = theme }", choice)
        sheet.wait_for_function(WEARS, arg=theme)
        assert chart.evaluate("it => it.closest('[data-theme]').dataset.theme") == theme


@pytest.mark.parametrize("name", CHARTS)
def test_the_charts_of_a_lesson_answer_keys(opened, look, name):
    """All charts count, also those in folded answers, which the test opens."""
    sheet = opened(f"lessons/{name}.html", look)
    sheet.locator("details.hide").evaluate_all("folded => folded.forEach(it => { it.open = true; })")
    sheet.locator(".flashlab-chart svg").first.wait_for()
    assert sheet.locator("img.flashlab-chart").count() == 0
    for chart in sheet.locator(".flashlab-chart:not(img)").all():
        chart.locator("svg").focus()
        sheet.keyboard.press("Enter")
        assert chart.locator(".tip").is_visible()
        sheet.keyboard.press("Escape")
    assert sheet.evaluate(INSIDE) and sheet.faults == []


def test_a_still_is_scrolled_on_a_narrow_screen(opened):
    still = opened("lessons/12_triton_backward.html", "narrow").locator("figure > img")
    assert still.bounding_box()["width"] == 800
    assert still.evaluate("it => getComputedStyle(it.closest('[tabindex]')).overflowX") == "auto"


def test_an_answer_is_folded_until_asked_for(opened):
    sheet = opened("lessons/06_tiling.html")
    folded = sheet.locator("details.hide").filter(has=sheet.locator(".cell_output"))
    assert folded.count() > 2 and not folded.first.locator(".cell_output").is_visible()
    folded.first.locator("summary").click()
    assert folded.first.locator(".cell_output").is_visible()


def test_the_interface_shows_kernels_with_signature_and_docstring(opened):
    sheet = opened("interface/kernels.portable.html")
    name = "flashlab.kernels.portable.forward.attention_forward"
    kernel = sheet.locator("dl.function").filter(has=sheet.locator(f'dt[id="{name}"]'))
    assert re.search(r"\(Q, K, V, [^()]*, tile: constexpr\)", kernel.locator("dt").inner_text())
    assert "Compute rows i * Br .. (i + 1) * Br of O" in kernel.locator("dd").inner_text()
    assert "/flashlab/kernels/portable/forward.py#L" in kernel.locator("dt a.external").get_attribute("href")
    sheet = opened("interface/kernels.html")
    assert sheet.locator('dt[id="flashlab.kernels.first_triton_kernel.add_kernel"]').count() == 1  # it has no docstring


def test_search_finds_a_term_of_the_glossary(opened):
    sheet = opened("search.html?q=occupancy")
    sheet.locator("#search-results li a[href*='notation.html']").first.wait_for()


def test_search_shows_lessons_before_pages_and_those_before_modules(opened):
    sheet = opened("search.html?q=kernel")
    sheet.locator(".search-summary", has_text="finished").wait_for()
    links = sheet.locator("#search-results li > a").all()
    folders = [re.split("[/.]", link.get_attribute("href"))[0] for link in links]
    ranks = [{"lessons": 0, "interface": 2}.get(folder, 1) for folder in folders]
    assert ranks == sorted(ranks) and set(ranks) == {0, 1, 2}


@pytest.fixture
def served(site):
    """Serve the site, and yield its address."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_site_works_from_a_server_too(opened, served):
    sheet = opened(f"{served}/lessons/06_tiling.html")
    sheet.locator(f"{HOST} svg").first.wait_for()
    assert sheet.faults == []


@pytest.mark.parametrize("missing", ["nowhere.html", "lessons/nowhere.html"])
def test_the_page_for_missing_pages_leads_into_the_site_wherever_that_is(opened, served, site, missing):
    sheet = opened(f"{served}/search.html")
    text = (site / "404.html").read_text(encoding="utf-8")
    sheet.route(f"{served}/{missing}", lambda route: route.fulfill(status=404, content_type="text/html", body=text))
    sheet.goto(f"{served}/{missing}")
    links = sheet.locator("header a, main a").evaluate_all("links => links.map(it => it.href)")
    inside = {it.removeprefix(f"{served}/") for it in links if it.startswith(served)}
    assert inside == {"index.html", "figures.html", "search.html"} and all((site / it).is_file() for it in inside)
    assert sheet.evaluate("document.fonts.check('600 2em Literata')") and sheet.faults == []


def test_the_figure_on_the_page_about_embedding_moves(opened, served):
    sheet = opened(f"{served}/embed.html")
    sheet.locator("#example .stage:not(.busy)").wait_for()
    clock, words = sheet.locator("#example .clock input"), sheet.locator("#example .words")
    clock.press("ArrowRight")
    assert clock.input_value() == "6"  # the example begins at 5
    before = words.inner_text()
    sheet.get_by_role("button", name="falling scores").click()
    assert sheet.locator("#example [data-field=source]").input_value() == "falling" and words.inner_text() != before
    assert sheet.faults == []


RENDER = """async name => {
    const { render, version, controls } = await import(`./figures/v1/${name}.js`);
    const host = document.body.appendChild(document.createElement("div"));
    const figure = render(host);
    const fields = Object.keys(figure.state);
    const one = controls.find(({ kind }) => kind !== "clock");
    figure.set({ [one.field]: one.values[0] });
    const marks = host.shadowRoot.querySelectorAll("svg *").length;
    return [version, fields.sort(), figure.state[one.field] === one.values[0], marks];
}"""


def test_every_figure_is_a_module_that_draws_into_an_element(opened, served):
    sheet = opened(f"{served}/search.html")
    for name in drawn.names():
        number, fields, follows, marks = sheet.evaluate(RENDER, name)
        assert number == version("flashlab-course") and fields == sorted(drawn.figure(name).CONTROLS), name
        assert follows and marks > 10, name
    assert sheet.faults == []


def test_a_picture_of_the_gallery_is_whole(opened, look):
    sheet = opened("figures.html", look)
    links = sheet.locator(".details a")
    assert [link.get_attribute("href") for link in links.all()] == FIGURES
    for name, link in zip(drawn.names(), links.all(), strict=True):
        place, box = (link.locator(part).bounding_box() for part in ("span", "img"))
        assert place["x"] <= box["x"] and box["x"] + box["width"] <= place["x"] + place["width"] + 0.5, name
        assert place["y"] <= box["y"] and box["y"] + box["height"] <= place["y"] + place["height"] + 0.5, name
        assert box["width"] <= panels.of_figure(name)[1]  # at the size of the figure, or smaller
    assert all(drawn.sentence(name) in link.inner_text() for name, link in zip(drawn.names(), links.all(), strict=True))
