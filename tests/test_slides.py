"""The slides: one per figure, with its words, all in a file that needs no other file."""

import html
import re

from docs import drawn, slides


def test_each_figure_has_a_slide_with_its_words_and_the_file_needs_no_other():
    pages = re.findall(r"<section>.*?</section>", slides.slides(), re.DOTALL)
    for name, page in zip(drawn.names(), pages, strict=True):
        figure = drawn.figure(name)
        (words,) = re.findall(r'<img alt="([^"]*)" src="data:image/png;base64,', page)
        assert html.unescape(words) == figure.describe(figure.State())
        assert f"/figures/{name}.html" in page
    assert re.findall(r'(?:src="(?!data:)|<link|@import|url\()[^>]*', "".join(pages) + slides.STYLE) == []
