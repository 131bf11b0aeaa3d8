"""The measurement of masks counts visible pairs, and all that it times computes the same."""

import pytest

pytest.importorskip("flashlab.kernels", reason="the kernels need triton, which is for Linux")
import torch  # noqa: E402

from flashlab.bench import masks as bench  # noqa: E402
from flashlab.reference import masks as reference  # noqa: E402
from tests.tools.long import long_except  # noqa: E402


def test_pairs_are_those_of_the_masks():
    ids = bench.documents("cpu").numpy()
    for kind, mask in {
        "causal": reference.causal(),
        "window": reference.window(bench.WINDOW - 1),
        "documents": reference.documents(ids) & reference.causal(),
    }.items():
        assert reference.pairs(mask, (bench.N, bench.N), 1024) == bench.PAIRS[kind]


def test_flops_are_those_of_visible_pairs():
    for direction, products in (("forward", 2), ("backward", 5)):
        cell = bench.Cell("window", direction, 128)
        assert cell.flops == pytest.approx(products * 2 * 128 * 16 * bench.PAIRS["window"])


@pytest.mark.parametrize("kind", long_except({"window"}, [kind for kind in bench.PAIRS if kind not in bench.ONLY_OURS]))
def test_ours_and_flex_compute_the_same(kind, monkeypatch):
    for name, value in {"N": 256, "WINDOW": 64, "WIDTH": 32}.items():
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr(bench, "documents", lambda device="cpu": torch.arange(256) // 64)
    monkeypatch.setattr(bench, "slopes", lambda H, device="cpu": 2.0 ** -torch.arange(1, H + 1))
    # No gradients: on a CPU FlexAttention has no backward pass.
    monkeypatch.setattr(bench, "training", lambda attend: lambda q, k, v, causal: attend(q, k, v))
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    from torch.nn.attention import flex_attention as module

    make = module.create_block_mask
    monkeypatch.setattr(module, "create_block_mask", lambda *args, device: make(*args, device="cpu"))
    q, k, v = torch.randn(3, 1, 2, 256, 16)
    *mine, theirs = (f(q, k, v, True) for f in bench.functions(kind, 16).values())
    for o in mine:
        torch.testing.assert_close(o, theirs, rtol=1e-4, atol=1e-5)


def test_the_table_has_ratios_and_their_mean():
    rows = [
        {"kind": kind, "pass": "forward", "d": 64, "impl": impl, "tflops": tflops}
        for kind, impl, tflops in (("causal", "portable", 200), ("causal", "flex", 100), ("sinks", "portable", 7))
    ]
    assert bench.table(rows).splitlines()[1].endswith("2.00") and "geometric mean" in bench.table(rows)
    rows.insert(0, rows[0] | {"impl": "hopper", "tflops": 300})
    assert bench.table(rows).splitlines()[1].endswith("3.00")
