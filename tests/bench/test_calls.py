"""The time of a call in Python, for each pass of each implementation that runs."""

import torch.nn.functional as F

from flashlab.bench import calls


def right(q, k, v, causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def broken(q, k, v, causal):
    raise RuntimeError("not here")


def test_every_pass_of_what_runs_is_timed(monkeypatch):
    monkeypatch.setattr(calls, "CALLS", 2)
    us = calls.overhead({"right": right, "broken": broken}, device="cpu")
    assert list(us) == ["right"] and set(us["right"]) == {"forward", "recorded", "backward", "both", "one thread"}
    assert all(number > 0 for number in us["right"].values())


def test_the_forward_pass_is_not_recorded_and_the_others_are():
    records = []

    def attend(q, k, v, causal):
        O = right(q, k, v, causal)
        records.append(O.requires_grad)
        return O

    runs = calls.passes(attend, device="cpu")
    runs["forward"](), runs["recorded"]()
    assert records == [True, False, True]  # ``passes`` itself makes the first call, for the backward pass
    for name in ("backward", "both", "one thread"):
        dQ, dK, dV = runs[name]()
        assert dQ.shape == dK.shape == dV.shape == (1, 1, 64, 64) and all(x.any() for x in (dQ, dK, dV))


def test_the_table_has_a_line_for_each_implementation():
    lines = calls.table({"flashlab": {"forward": 30.4, "backward": 61.6}, "cudnn": {"forward": 32}}).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["flashlab", "forward", "30", "backward", "62"],
        ["cudnn", "forward", "32"],
    ]
