import pytest

from figures import kv_cache as figure


@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize("sharing", [True, False])
def test_pages_are_free_or_held_and_never_lost(page, sharing):
    trace = figure.trace(figure.State(page=page, sharing=sharing))
    assert len(trace["steps"]) == len(figure.SCRIPT) + 1
    for now in trace["steps"]:
        pages = {number for text in now["texts"] for number in text["pages"]}
        assert len(pages) + now["free"] == trace["pages"] and now["held"] == page * len(pages)
        assert now["tokens"] <= now["held"] and now["rooms"] == figure.LONGEST * len(now["texts"])
        assert all(len(text["pages"]) == -(-text["length"] // page) for text in now["texts"])
        if not sharing:
            assert sum(len(text["pages"]) for text in now["texts"]) == len(pages)


def test_a_fork_shares_until_it_writes():
    steps = figure.trace(figure.State())["steps"]
    fork, write = steps[4], steps[5]
    pages = {text["name"]: text["pages"] for text in fork["texts"]}
    assert fork["what"] == "C forks from A" and pages["A"] == pages["C"] and len(write["copies"]) == 1
    pages = {text["name"]: text["pages"] for text in write["texts"]}
    assert pages["A"][:3] == pages["C"][:3] and pages["A"][3] != pages["C"][3]


@pytest.mark.parametrize("page", [1, 2, 4, 8, 16])
def test_tokens_come_from_texts_that_grow_and_from_copies(page):
    steps = figure.trace(figure.State(page=page))["steps"]
    for (what, _, n), before, now in zip(figure.SCRIPT, steps, steps[1:], strict=False):
        if what in ("begins", "grows"):
            assert now["tokens"] == before["tokens"] + n + now["copied"]
        assert 0 <= now["copied"] <= page * len(now["copies"])


def test_describe_has_the_numbers():
    assert figure.describe(figure.State(5)) == (
        "C grows by 3. Page 5 is copied to 6 first, with 1 token. 22 tokens take room for 28 in pages of 4, 72 without "
        "pages, more than there is; 9 pages are free."
    )
    assert figure.describe(figure.State()).startswith("C forks from A. 18 tokens")
