"""The calls of real models, and how their measurements are compared, without a GPU."""

import numpy as np
import pytest

models = pytest.importorskip("flashlab.bench.models", reason="the kernels need triton, which is for Linux")

from flashlab.bench import model_shapes  # noqa: E402
from flashlab.bench.model_shapes import WEIGHTS, Call, calls  # noqa: E402


def test_every_family_has_calls_and_a_weight_and_no_call_is_there_twice():
    every = calls()
    assert {call.model.family for call in every} == set(WEIGHTS)
    assert len(set(every)) == len(every)
    assert len({call[2:] + call.model[3:] for call in every}) >= 40


def test_random_calls_are_the_same_each_time():
    assert list(model_shapes.drawn()) == list(model_shapes.drawn()) != list(model_shapes.drawn(seed=1))


@pytest.mark.parametrize(
    "model", [model_shapes.LLAMA_8B, model_shapes.MISTRAL, model_shapes.BERT], ids=lambda m: m.name
)
@pytest.mark.parametrize("Nq, Nk", [(7, 7), (3, 9), (1, 6)])
def test_pairs_are_those_that_the_mask_shows(model, Nq, Nk):
    model = model._replace(window=model.window and 4)
    i, j = np.arange(Nk - Nq, Nk)[:, None], np.arange(Nk)  # [Nq, 1], [Nk]
    window = Nk if model.window is None else model.window
    visible = (j <= i) & (i - j <= window) if model.causal else j <= Nk + 0 * i  # [Nq, Nk]
    assert Call(model, "forward", 2, Nq, Nk).pairs == visible.sum()


def test_a_backward_pass_has_two_and_a_half_times_the_flops():
    forward = Call(model_shapes.LLAMA_8B, "forward", 2, 64, 64)
    assert forward._replace(direction="backward").flops == 2.5 * forward.flops
    assert forward.flops == 2 * 2 * 2 * 32 * (64 * 65 // 2) * 128


def row(impl, gpu_us, host_us, **place):
    shape = {"model": "a model", "family": "Phi", "pass": "forward", "B": 1, "Nq": 8, "Nk": 8}
    return shape | {"impl": impl, "gpu_us": gpu_us, "host_us": host_us} | place


def test_ours_is_compared_with_the_best_rival_and_the_host_counts_in_a_call():
    rows = [row("flashlab", 10, 80), row("fa3", 20, 20), row("cudnn", 8, 40), row("flashlab", 5, 5, Nq=16)]
    first, second = models.cells(rows).values()
    assert models.ratio(first, lambda it: it["gpu_us"]) == 0.8
    assert models.ratio(first, models.call_us) == 20 / 80
    assert models.ratio(first, models.call_us, "cudnn") == 40 / 80
    assert models.ratio(second, models.call_us) is None
    assert any("best rival" in line and " 0.25 in 1 calls, 1 behind" in line for line in models.summary(rows))


def test_the_mean_is_geometric_and_weighted():
    assert models.mean([(2, 1), (0.5, 1)]) == pytest.approx(1)
    assert models.mean([(8, 1), (1, 2)]) == pytest.approx(2)


@pytest.mark.parametrize(
    "model, name, why",
    [
        (model_shapes.OSS, "fa3", "sinks"),
        (model_shapes.MISTRAL, "cudnn", "window"),
        (model_shapes.GEMMA_2, "fa2", "soft cap"),
        (model_shapes.LLAMA_8B, "cudnn", "upper left"),
    ],
)
def test_what_a_rival_cannot_compute_has_a_reason(model, name, why, monkeypatch):
    monkeypatch.setattr(models, "sinks_of", lambda model: None)
    with pytest.raises(ValueError, match=why):
        models.function(name, Call(model, "forward", 1, 8, 16))
