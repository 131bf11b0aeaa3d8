"""A needle in a haystack, at the size of one head of the character model: each of n stored keys asks for its value.

Both kinds of attention learn the same things: the query, key and value of each symbol, and the read-out. The only
difference is what happens to the scores: a softmax, or nothing. The pairs are drawn anew for each text, so there is
nothing to learn by heart.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from flashlab.machine.arguments import check_arguments

SYMBOLS = 64  # different keys, and as many values
BATCH, RATE = 16, 0.05  # texts per step, and Adam's rate

Weights = Callable[[torch.Tensor], torch.Tensor]  # from scores [..., n, n]
KINDS: dict[str, Weights] = {"softmax": lambda S: S.softmax(-1), "linear": lambda S: S}


class Model(NamedTuple):
    """One head: a vector for each symbol in each of its four roles."""

    Q: torch.Tensor  # [SYMBOLS, d]
    K: torch.Tensor  # [SYMBOLS, d]
    V: torch.Tensor  # [SYMBOLS, dv]
    read_out: torch.Tensor  # [SYMBOLS, dv]
    weights: Weights

    def answers(self, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Return for each key the scores of all symbols as its value, [B, n, SYMBOLS].

        keys, values: the stored pairs, [B, n] each.
        """
        for name, x in {"keys": keys, "values": values}.items():
            if x.dtype != torch.int64 or x.shape != keys.shape or not ((x >= 0) & (x < SYMBOLS)).all():
                expected = f"int64 [B, n] from 0 to {SYMBOLS - 1}"
                raise ValueError(f"{name} must be {expected}, got {x.dtype} {list(x.shape)}")
        S = self.Q[keys] @ self.K[keys].mT  # [B, n, n]
        return self.weights(S) @ self.V[values] @ self.read_out.T


@check_arguments(n=(1, SYMBOLS))
def texts(B: int, n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw n different keys for each of B texts, and a value for each key: int64 [B, n] both."""
    keys = torch.rand(B, SYMBOLS, dtype=torch.float32, generator=generator).argsort(1)[:, :n]  # [B, n]
    return keys, torch.randint(SYMBOLS, (B, n), generator=generator)


@check_arguments(steps=0, seed=0)
def train(kind: str, *, d: int = 16, dv: int | None = None, steps: int = 600, seed: int = 0) -> Model:
    """Train a head with d columns, dv in its values, on texts of 4 to ``SYMBOLS`` pairs. kind: one of ``KINDS``."""
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r:.40}")
    generator = torch.Generator().manual_seed(seed)
    options = {"generator": generator, "requires_grad": True}
    widths = d, d, dv or d, dv or d
    Q, K, V, read_out = (torch.randn(SYMBOLS, width, dtype=torch.float32, **options) for width in widths)
    model = Model(Q, K, V, read_out, KINDS[kind])
    optimizer = torch.optim.Adam([Q, K, V, read_out], lr=RATE)
    for _ in range(steps):
        n = int(torch.randint(4, SYMBOLS + 1, (1,), generator=generator))
        keys, values = texts(BATCH, n, generator)
        loss = F.cross_entropy(model.answers(keys, values).flatten(0, 1), values.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@check_arguments(n=(1, SYMBOLS), seed=0)
def share(model: Model, n: int, *, B: int = 64, seed: int = 1) -> float:
    """Return the share of values that are found among n pairs, in B fresh texts."""
    keys, values = texts(B, n, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return (model.answers(keys, values).argmax(-1) == values).double().mean().item()
