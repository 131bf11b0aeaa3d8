"""A character model small enough to train while one watches, on *Alice*. How it attends is an argument."""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from flashlab.course import data
from flashlab.kernels import DEVICE
from flashlab.models.modules import FlashAttention

CONTEXT = 128  # characters that it reads at once, at most


class Block(nn.Module):
    """Positions look at each other, then each thinks for itself; both are added to what was there."""

    def __init__(self, d_model, num_heads, attention):
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.attend = FlashAttention(d_model, num_heads, causal=True, attention=attention)
        self.think = nn.Sequential(
            nn.LayerNorm(d_model), nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model)
        )

    def forward(self, x):
        x = x + self.attend(self.norm(x))  # [B, N, d_model]
        return x + self.think(x)


class CharacterModel(nn.Module):
    """Scores [B, N, alphabet] for the character that follows each of tokens [B, N], N <= CONTEXT.

    alphabet: number of different characters. attention: a function (Q, K, V, *, causal) -> O on [B, H, N, d].
    """

    def __init__(self, alphabet, attention, *, d_model=32, num_heads=2, blocks=2):
        super().__init__()
        self.character = nn.Embedding(alphabet, d_model)
        self.position = nn.Embedding(CONTEXT, d_model)
        self.blocks = nn.Sequential(*(Block(d_model, num_heads, attention) for _ in range(blocks)))
        self.read_out = nn.Sequential(nn.LayerNorm(d_model), nn.Linear(d_model, alphabet))

    def embed(self, tokens):
        """What the first block is given: [B, N, d_model]."""
        return self.character(tokens) + self.position.weight[: tokens.shape[-1]]

    def forward(self, tokens):
        return self.read_out(self.blocks(self.embed(tokens)))


class Training(NamedTuple):
    """A model, trained, and what its loss was before each step, in nats a character."""

    model: CharacterModel
    losses: np.ndarray  # [steps] float64


def text():
    """The text as (tokens, alphabet): numbers [86889] int64, and the characters that they stand for [67], sorted."""
    characters = list(data.text())
    alphabet, tokens = np.unique(characters, return_inverse=True)
    return torch.from_numpy(tokens), alphabet


def train(attention, *, steps=24, seed=0, dtype=torch.float32, name=None) -> Training:
    """Train a fresh model, one stretch of text a step. The seed decides on the first weights and on the stretches.

    name: what its progress bar is called; there is none if None.
    """
    tokens, alphabet = text()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = CharacterModel(len(alphabet), attention).to(DEVICE, dtype)
        starts = torch.randint(len(tokens) - CONTEXT, (steps,)).tolist()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)  # sums are then split alike on every machine, and tensors so small are no slower for it
    try:
        for start in starts:
            stretch = tokens[start : start + CONTEXT + 1].to(DEVICE)  # [N + 1]
            loss = F.cross_entropy(model(stretch[None, :-1])[0].double(), stretch[1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if name is not None:
                done = 20 * len(losses) // steps * "█"
                end = "\n" if len(losses) == steps else ""
                print(f"\r{name:16}{done:░<20} step {len(losses)} of {steps}, loss {loss:.2f}", end=end, flush=True)
    finally:
        torch.set_num_threads(threads)
    return Training(model, np.array(losses))
