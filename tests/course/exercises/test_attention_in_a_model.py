"""attention_in_a_model: right solutions pass however they are written."""

import math

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("flashlab.kernels", reason="the kernels need triton, which is for Linux")

from flashlab.course.check import solution  # noqa: E402
from flashlab.course.registry import find  # noqa: E402
from flashlab.kernels import DEVICE, flash_attention, masks  # noqa: E402
from flashlab.kernels.configurations import Configuration  # noqa: E402
from flashlab.kernels.count import count  # noqa: E402
from flashlab.kernels.portable import backward, forward  # noqa: E402
from flashlab.kernels.problem import Problem  # noqa: E402
from flashlab.machine.hardware import CARDS  # noqa: E402
from flashlab.models import kv_cache  # noqa: E402
from flashlab.models.saved import dense_bytes, flash_bytes, longest  # noqa: E402
from flashlab.reference import tiling  # noqa: E402
from flashlab.reference.masks import causal  # noqa: E402
from tests.course.exercises import right  # noqa: E402


def forward_by_views(self, x):
    B, N, d_model = x.shape
    d = d_model // self.num_heads
    Q = self.q_proj(x).view(B, N, self.num_heads, d).permute(0, 2, 1, 3)
    K = self.k_proj(x).view(B, N, self.num_kv_heads, d).permute(0, 2, 1, 3)
    V = self.v_proj(x).view(B, N, self.num_kv_heads, d).permute(0, 2, 1, 3)
    return self.o_proj(self.attention(Q, K, V, causal=self.causal).permute(0, 2, 1, 3).reshape(B, N, d_model))


def forward_head_by_head(self, x):
    d, shared = x.shape[-1] // self.num_heads, self.num_heads // self.num_kv_heads
    q, k, v = (proj(x).split(d, -1) for proj in (self.q_proj, self.k_proj, self.v_proj))
    heads = [
        self.attention(q[h][:, None], k[h // shared][:, None], v[h // shared][:, None], causal=self.causal)[:, 0]
        for h in range(self.num_heads)
    ]
    return self.o_proj(torch.cat(heads, -1))


def step_as_a_tuple(Q, K, V, past_K, past_V):
    K, V = torch.concatenate((past_K, K), -2), torch.concatenate((past_V, V), -2)
    return flash_attention(Q, K, V, causal=True), K, V


def step_into_room_set_aside(Q, K, V, past_K, past_V):
    N, n = past_K.shape[2], K.shape[2]
    grown = [x.new_empty(*x.shape[:2], N + n, x.shape[3]) for x in (K, V)]
    for room, past, new in zip(grown, (past_K, past_V), (K, V), strict=True):
        room[:, :, :N], room[:, :, N:] = past, new
    return kv_cache.Step(flash_attention(Q, *grown, causal=True), *grown)


def step_with_a_mask(Q, K, V, past_K, past_V):
    K, V = torch.cat([past_K, K], 2), torch.cat([past_V, V], 2)
    n, N = Q.shape[2], K.shape[2]
    seen = torch.ones(n, N, dtype=torch.bool, device=Q.device).tril(N - n)
    return F.scaled_dot_product_attention(Q, K, V, attn_mask=seen, enable_gqa=True), K, V


RIGHT = {
    "attention_in_a_model.forward": [forward_by_views, forward_head_by_head],
    "attention_in_a_model.step": [step_as_a_tuple, step_into_room_set_aside, step_with_a_mask],
}

test_right_answers_pass = pytest.mark.exhaustive(right.all_pass(RIGHT))  # their references are right in test_every.py


def test_answers_are_what_the_course_counts():
    tokens = [longest(CARDS[f"A100 {GB} GB"].dram_bytes, dense_bytes, d=64, heads=16, itemsize=2) for GB in (40, 80)]
    assert abs(tokens[1] / tokens[0] - find("attention_in_a_model.doubling").answer) < 0.01
    token = kv_cache.nbytes(1, layers=32, kv_heads=8, d=128)
    assert token == 1024 * find("attention_in_a_model.cache").answer


def test_a_solution_that_is_a_method_is_shown_at_the_margin(capsys):
    solution("attention_in_a_model.forward", sure=True)
    assert capsys.readouterr().out.lstrip().startswith("def forward(self, x: torch.Tensor)")


def test_answers_of_the_quiz_are_what_flashlab_computes():
    def answer(name):
        return find(f"attention_in_a_model.quiz_{name}").answer

    tiles_of_queries, shape = tiling.tiles(256, 128), (256, 1024)
    assert answer("tiles") == sum(len(causal().tiles(tile, 128, shape)) for tile in tiles_of_queries)
    assert answer("lse") == pytest.approx(math.log(2**3 * 4), abs=1e-4)
    assert answer("kept") == flash_bytes(1024, d=64, heads=1, itemsize=2) / 1024
    assert answer("products") == 2 + find("triton_backward.products").answer


def test_the_quiz_counts_programs_as_the_kernels_start_them():
    q, k, v, o, dq, do = (torch.zeros(2, heads, 256, 16, device=DEVICE) for heads in (8, 2, 2, 8, 8, 8))
    lse, dk, dv = torch.zeros(2, 8, 256, device=DEVICE), torch.zeros_like(k), torch.zeros_like(v)
    problem, size = Problem.of(q, k, v, masks.full(), 1.0), Configuration(128, 128, warps=4, stages=1)
    started = [event.kind for event in count(forward.run, o, lse, q, k, v, problem, size).events].count("kernel")
    assert find("attention_in_a_model.quiz_programs").answer == started * 4096 / 256
    sizes = dict.fromkeys(("row_constants", "key_value_gradients", "query_gradients"), size)
    booked = count(backward.run, (dq, dk, dv), (do, None), (q, k, v, o, lse), problem, sizes)
    owners = sum(event.kind == "store" and event.name == "dK" for event in booked.events)
    assert find("attention_in_a_model.quiz_owner").answer == owners / 2 * 1024 / 256  # of one text
