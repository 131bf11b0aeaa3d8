"""The time of a call in Python: every pass of every implementation that runs."""

import torch.nn.functional as F

from flashlab.bench import calls


def right(q, k, v, causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def broken(q, k, v, causal):
    raise RuntimeError("not here")


def test_every_pass_of_what_runs_is_timed(monkeypatch):
    monkeypatch.setattr(calls, "CALLS", 2)
    found = calls.overhead({"right": right, "broken": broken}, device="cpu")
    assert list(found) == ["right"] and set(found["right"]) == {"forward", "recorded", "backward", "both", "one thread"}
    assert all(us > 0 for us in found["right"].values())


def test_the_forward_pass_is_not_recorded_and_the_others_are():
    seen = []

    def attend(q, k, v, causal):
        O = right(q, k, v, causal)
        seen.append(O.requires_grad)
        return O

    runs = calls.passes(attend, device="cpu")
    runs["forward"](), runs["recorded"]()
    assert seen == [True, False, True]  # the first is made for the backward pass
    for name in ("backward", "both", "one thread"):
        dQ, dK, dV = runs[name]()
        assert dQ.shape == dK.shape == dV.shape == (1, 1, 64, 64) and all(x.any() for x in (dQ, dK, dV))


def test_the_table_has_a_line_for_each():
    lines = calls.table({"flashlab": {"forward": 30.4, "backward": 61.6}, "cudnn": {"forward": 32}}).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["flashlab", "forward", "30", "backward", "62"],
        ["cudnn", "forward", "32"],
    ]
