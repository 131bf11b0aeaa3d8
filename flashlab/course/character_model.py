"""A character model that trains on *Alice* in seconds. Its attention is an argument.

An attention is a function (Q, K, V, *, causal) -> O on [B, H, N, d], such as ``flash_attention`` or ``plain.dense``.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from flashlab.course import data
from flashlab.kernels import DEVICE
from flashlab.machine.arguments import check_arguments
from flashlab.models.modules import FlashAttention

CONTEXT = 128  # the most characters that it reads at once

Attention = Callable[..., torch.Tensor]


class Block(nn.Module):
    """Attention over all positions, then a small network at each position; both results are added to the input."""

    def __init__(self, d_model: int, num_heads: int, attention: Attention):
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.attend = FlashAttention(d_model, num_heads, causal=True, attention=attention)
        self.think = nn.Sequential(
            nn.LayerNorm(d_model), nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm(x))  # [B, N, d_model]
        return x + self.think(x)  # [B, N, d_model]


class CharacterModel(nn.Module):
    """Scores [B, N, alphabet] of the character that follows each of tokens [B, N], N <= CONTEXT.

    alphabet: number of different characters.
    """

    @check_arguments(blocks=0)
    def __init__(self, alphabet: int, attention: Attention, *, d_model: int = 32, num_heads: int = 2, blocks: int = 2):
        super().__init__()
        self.character = nn.Embedding(alphabet, d_model)
        self.position = nn.Embedding(CONTEXT, d_model)
        self.blocks = nn.Sequential(*(Block(d_model, num_heads, attention) for _ in range(blocks)))
        self.read_out = nn.Sequential(nn.LayerNorm(d_model), nn.Linear(d_model, alphabet))

    def embed(self, tokens: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Return the input of the first block, [B, N, d_model].

        positions: [N], or [B, N] where texts differ, of the tokens; 0, 1, ... if None.
        """
        places = slice(tokens.shape[-1]) if positions is None else positions
        return self.character(tokens) + self.position.weight[places]

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        return self.read_out(self.blocks(self.embed(tokens, positions)))


class Training(NamedTuple):
    """A trained model, and its loss before each step, in nats per character."""

    model: CharacterModel
    losses: np.ndarray  # [steps] float64


def text() -> tuple[torch.Tensor, np.ndarray]:
    """Return the text as numbers [86889] int64, and the characters that they number [67], sorted."""
    characters = list(data.text())
    alphabet, tokens = np.unique(characters, return_inverse=True)
    return torch.from_numpy(tokens), alphabet


@check_arguments(steps=0, blocks=0, seed=0)
def train(
    attention: Attention,
    *,
    steps: int = 24,
    blocks: int = 2,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    name: str | None = None,
    positions: torch.Tensor | None = None,
    add_up: Callable[[torch.Tensor], object] | None = None,
) -> Training:
    """Train a fresh model on one stretch of text per step. The seed decides the first weights and the stretches.

    name: the title of the progress bar; there is none if None.
    positions: the positions [n] of this process's tokens, where the context is divided over processes, as
    ``distributed.positions`` returns them. The attention is then one over the same processes, and ``add_up`` adds up a
    tensor over them, in place, as ``torch.distributed.all_reduce`` does.
    """
    tokens, alphabet = text()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = CharacterModel(len(alphabet), attention, blocks=blocks).to(DEVICE, dtype)
        starts = torch.randint(len(tokens) - CONTEXT, (steps,)).tolist()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)  # then every machine splits sums alike; for small tensors it is no slower
    try:
        for start in starts:
            stretch = tokens[start : start + CONTEXT + 1].to(DEVICE)  # [N + 1]
            here, following = stretch[:-1], stretch[1:]  # [N], [N]
            if positions is not None:
                here, following = here[positions], following[positions]  # [n], [n]
            scores = model(here[None], positions)[0].double()  # [N, alphabet] or [n, alphabet]
            loss = F.cross_entropy(scores, following, reduction="sum") / CONTEXT
            optimizer.zero_grad()
            loss.backward()
            if add_up is not None:  # each process has the loss of its own tokens, and its share of the gradients
                for tensor in (loss.detach(), *(parameter.grad for parameter in model.parameters())):
                    add_up(tensor)
            optimizer.step()
            losses.append(loss.item())
            if name is not None:
                end = "\n" if len(losses) == steps else ""
                bar = "█" * (20 * len(losses) // steps)
                print(f"\r{name:16}{bar:░<20} step {len(losses)} of {steps}, loss {loss:.2f}", end=end, flush=True)
    finally:
        torch.set_num_threads(threads)
    return Training(model, np.array(losses))
