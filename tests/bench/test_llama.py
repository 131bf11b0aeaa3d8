"""The stored tokens, which lesson 13 shows where transformers is missing, are those that the lesson's model writes."""

import pytest

llama = pytest.importorskip("flashlab.bench.llama", reason="the kernels need triton, which is for Linux")

from flashlab.course import data  # noqa: E402


def test_the_stored_tokens_are_the_same_with_both_attentions_and_differ_among_themselves():
    stored = data.measured("llama")["written"]
    assert list(stored) == ["eager", llama.OURS] and stored["eager"] == stored[llama.OURS]
    assert len(stored["eager"]) == 8 == len(set(stored["eager"]))


@pytest.mark.exhaustive
def test_the_stored_tokens_are_what_the_model_writes():
    pytest.importorskip("transformers", reason="make test-all installs transformers")
    assert llama.written() == data.measured("llama")["written"]


def test_without_transformers_a_sentence_says_so(monkeypatch, capsys):
    monkeypatch.setattr(llama, "versions", lambda packages: {})
    assert llama.written() is None
    assert llama.main([]) == 1 and "transformers is not installed" in capsys.readouterr().err
