"""The implementations that may compute a call: which is chosen, and what two of them have in common."""

import torch

from flashlab.kernels import DEVICE, configurations, plan

HOPPER = DEVICE.type == "cuda" and torch.cuda.get_device_capability() == (9, 0)


def choose_anew():
    """Forget the choices of earlier calls, and their plans."""
    configurations.choose_for.cache_clear()
    plan.forget()


def choose_halves(monkeypatch):
    """Choose a kernel for dK and one for dV from now on, with the tiles of the kernel for both."""
    portable = configurations.portable

    def as_for_both(name, *rest):
        return portable("key_value_gradients" if name in configurations.HALVES else name, *rest)

    monkeypatch.setattr(configurations, "of_backward", lambda *_: (*configurations.HALVES, "query_gradients"))
    monkeypatch.setattr(configurations, "portable", as_for_both)
    choose_anew()


def assert_same_bits(ours, others, kernel, dQ=1):
    """Assert equal bits. Hopper's dQ, at index ``dQ``, is added up in any order: it may differ by two roundings."""
    for place, (x, y) in enumerate(zip(ours, others, strict=True)):
        if kernel == "hopper" and place == dQ and y.numel():
            eps = torch.finfo(x.dtype).eps
            torch.testing.assert_close(x, y, rtol=2 * eps, atol=2 * eps * y.abs().max().item())
        else:
            assert torch.equal(x, y)
