"""The stored queries, keys and values are complete and of known origin, and heads look where the lessons say."""

import ast
import re

import numpy as np
import pytest

from flashlab.course import data
from flashlab.reference.attention import weights

SCRIPT = data.DATA.parents[1] / "flashlab" / "bench" / "capture.py"
LENGTHS = {"alice": 512, "bank": 14, "two_banks": 23}


def script_constant(name):
    """Return a constant of capture.py without running it: the script needs the model."""
    for node in ast.parse(SCRIPT.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise LookupError(f"capture.py has no constant {name}")


def test_every_stored_text_is_known():
    assert data.names() == sorted(LENGTHS)


@pytest.mark.parametrize("name", LENGTHS)
def test_shapes_and_dtypes_fit_the_tokens(name):
    c = data.captured(name)
    assert len(c.tokens) == LENGTHS[name]
    assert c.tokens[0] == "[CLS]" and c.tokens[-1] == "[SEP]"
    for tensor in (c.Q, c.K, c.V):
        assert tensor.shape == (len(c.layers), c.about["heads"], len(c.tokens), c.about["d"])
        assert tensor.dtype == np.float32
        assert np.isfinite(tensor).all()
        assert (tensor.std((2, 3)) > 0.1).all()  # no head is empty


@pytest.mark.parametrize("name", LENGTHS)
def test_attention_of_every_head_sums_to_one(name):
    c = data.captured(name)
    for layer in c.layers:
        for head in range(c.about["heads"]):
            Q, K, _ = (x.astype(np.float64) for x in c.head(layer, head))
            P, _ = weights(Q, K, scale=c.scale)  # [N, N]
            np.testing.assert_allclose(P.sum(-1), 1, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", LENGTHS)
def test_head_is_picked_by_the_number_of_its_layer(name):
    c = data.captured(name)
    for index, layer in enumerate(c.layers):
        for tensor, stored in zip(c.head(layer, 7), (c.Q, c.K, c.V), strict=True):
            assert np.array_equal(tensor, stored[index, 7])


@pytest.mark.parametrize("name", LENGTHS)
def test_provenance_is_complete_and_agrees_with_the_script(name):
    c = data.captured(name)
    assert c.layers == c.about["layers"] == script_constant("LAYERS")
    assert c.scale == c.about["scale"] == c.about["d"] ** -0.5
    assert c.about["model"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert c.about["licence"].startswith("Apache-2.0")
    package, version = c.about["package"].split()
    assert f"{package}=={version}" in SCRIPT.read_text(encoding="utf-8")
    assert set(c.about["versions"]) == {"torch", "transformers", "numpy"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", c.about["date"])
    assert c.about["script"] == "notebooks/data/capture.py"
    assert len(c.tokens) <= script_constant("MAX_TOKENS")


def test_texts_are_those_of_the_script():
    for name, text in script_constant("SENTENCES").items():
        c = data.captured(name)
        assert c.about["text"] == text
        assert c.tokens[1:-1] == re.findall(r"\w+|\.", text.lower())
    book = data.text()
    opening = "".join(token.removeprefix("##") for token in data.captured("alice").tokens[1:-1])
    assert "".join(book[book.index("Alice was") :].lower().split()).startswith(opening)


@pytest.mark.parametrize("name", LENGTHS)
def test_stored_attention_is_that_of_the_model_up_to_half_precision(name):
    about = data.captured(name).about
    assert about["O_relative_error"] <= 2**-11  # half a unit in the last place of float16
    assert about["P_max_abs_error"] <= 2.5e-3


def test_the_lessons_head_looks_from_bank_to_river():
    c = data.captured("bank")
    P, _ = weights(*c.head()[:2], scale=c.scale)  # [N, N]
    row = P[c.tokens.index("bank")]  # [N]
    assert c.tokens[row.argmax()] == "river" and row.max() > 0.5

    c = data.captured("two_banks")
    P, _ = weights(*c.head()[:2], scale=c.scale)  # [N, N]
    first, second = (i for i, token in enumerate(c.tokens) if token == "bank")
    cash, river = c.tokens.index("cash"), c.tokens.index("river")
    assert P[first].argmax() == cash and P[second].argmax() == river
    assert P[second, river] > 2 * P[first, river]


def test_unknown_names_and_heads_say_what_there_is():
    with pytest.raises(ValueError, match="expected one of alice, bank, two_banks, got 'river'"):
        data.captured("river")
    with pytest.raises(ValueError, match=r"expected a layer of \[0, 5\] and a head from 0 to 11, got 3, 4"):
        data.captured("bank").head(3, 4)
    with pytest.raises(ValueError, match="got 0, 12"):
        data.captured("bank").head(head=12)


def test_without_the_checkout_a_sentence_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(data, "DATA", tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="install flashlab from its checkout"):
        data.captured("bank")


def test_every_measurement_says_where_and_when():
    for name in data.names(".json"):
        about = data.measured(name)
        about = about.get("about", about)
        assert about["device"].startswith("NVIDIA") or name == "llama", name  # a text, which needs no GPU
        assert about["device"] and re.fullmatch(r"\d{4}-\d\d-\d\d", about["date"]), name
    with pytest.raises(ValueError, match="h200_hopper, .*got 'h300'"):
        data.measured("h300")


def test_the_book_for_the_character_model_is_plain():
    book = (data.DATA / "alice.txt").read_bytes()
    assert 60_000 <= len(book) <= 100_000
    assert book.isascii() and b"\r" not in book
    assert len(set(book)) == 67
