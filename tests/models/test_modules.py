"""The drop-ins mean what torch and transformers mean by them, and refuse in a sentence what they cannot do."""

import pytest
import torch
import torch.nn.functional as F

modules = pytest.importorskip("flashlab.models.modules", reason="the kernels need triton, which is for Linux")

from flashlab.kernels import DEVICE, flash_attention  # noqa: E402
from tests.tools.bounds import assert_as_exact_as_plain  # noqa: E402


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def results(function, tensors, dtype, **options):
    """Output and gradients of a function of query, key and value."""
    tensors = [tensor.to(dtype, copy=True).requires_grad_() for tensor in tensors]
    O = function(*tensors, **options)
    dO = randn(*O.shape, seed=9).to(dtype)
    return [O, *torch.autograd.grad(O, tensors, dO)]


def assert_is_torchs(shapes, dtype=torch.float16, **options):
    tensors = [randn(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes)]
    ours = results(modules.scaled_dot_product_attention, tensors, dtype, **options)
    plain = results(F.scaled_dot_product_attention, tensors, dtype, **options)
    exact = results(F.scaled_dot_product_attention, tensors, torch.float64, **options)
    for name, *three in zip(("O", "dQ", "dK", "dV"), ours, plain, exact, strict=True):
        assert three[0].shape == three[2].shape, name
        assert_as_exact_as_plain(*three)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_causal", [False, True])
def test_sdpa_equals_torchs(dtype, is_causal):
    assert_is_torchs([(2, 2, 70, 32)] * 3, dtype, is_causal=is_causal)


@pytest.mark.parametrize("Nq, Nk", [(20, 50), (50, 20), (2, 30), (30, 2)])
def test_sdpa_aligns_the_causal_mask_at_the_upper_left(Nq, Nk):
    assert_is_torchs([(1, 2, Nq, 16), (1, 2, Nk, 16), (1, 2, Nk, 16)], is_causal=True)


def test_upper_left_and_lower_right_differ_where_lengths_do():
    q, k, v = randn(1, 1, 5, 16), randn(1, 1, 9, 16, seed=1), randn(1, 1, 9, 16, seed=2)
    upper_left = modules.scaled_dot_product_attention(q, k, v, is_causal=True)
    lower_right = flash_attention(q, k, v, causal=True)
    assert torch.equal(upper_left[0, 0, 0], v[0, 0, 0])  # the first query sees the first key and no other
    assert (upper_left - lower_right).abs().max() > 0.1


@pytest.mark.parametrize("batch", [(), (3,), (2, 1, 3)], ids=str)
def test_sdpa_takes_any_number_of_leading_dimensions(batch):
    assert_is_torchs([(*batch, 9, 16)] * 3, is_causal=True)


def test_sdpa_broadcasts_leading_dimensions():
    assert_is_torchs([(2, 3, 9, 16), (1, 3, 12, 16), (3, 12, 16)])


@pytest.mark.parametrize("batch", [(2,), (), (2, 2)], ids=str)
def test_sdpa_shares_key_heads_out_where_asked(batch):
    assert_is_torchs([(*batch, 4, 9, 16), (*batch, 2, 12, 16), (*batch, 2, 12, 16)], enable_gqa=True)


def test_sdpa_refuses_unequal_heads_unless_asked_as_torch_does():
    q, k = randn(1, 4, 9, 16), randn(1, 2, 9, 16)
    for function in (modules.scaled_dot_product_attention, F.scaled_dot_product_attention):
        with pytest.raises(RuntimeError):
            function(q, k, k)


def test_sdpa_takes_a_scale_and_values_of_their_own_width():
    assert_is_torchs([(1, 2, 20, 16), (1, 2, 30, 16), (1, 2, 30, 24)], scale=0.7)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"attn_mask": torch.ones(9, 9, dtype=torch.bool)}, "attn_mask is not supported"),
        ({"dropout_p": 0.1}, "dropout is not supported: expected dropout_p=0, got 0.1"),
    ],
)
def test_sdpa_refuses_what_it_cannot_do(options, said):
    x = randn(1, 1, 9, 16)
    with pytest.raises(NotImplementedError, match=said):
        modules.scaled_dot_product_attention(x, x, x, **options)


def test_sdpa_refuses_vectors():
    x = randn(9)
    with pytest.raises(ValueError, match="at least the dimensions \\[N, d\\]"):
        modules.scaled_dot_product_attention(x, x, x)
    with pytest.raises(ValueError, match="at least the dimensions \\[H, N, d\\]"):
        modules.scaled_dot_product_attention(x[None], x[None], x[None], enable_gqa=True)


def dense(Q, K, V, *, causal):
    return F.scaled_dot_product_attention(Q, K, V, is_causal=causal, enable_gqa=True)


@pytest.mark.parametrize("num_kv_heads", [None, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_module_equals_the_dense_module_in_output_and_gradients(num_kv_heads, causal):
    def run(attention, dtype):
        torch.manual_seed(0)
        module = modules.FlashAttention(64, 4, num_kv_heads, causal=causal, bias=True, attention=attention)
        module = module.to(DEVICE, dtype)
        x = randn(2, 33, 64).to(dtype).requires_grad_()
        y = module(x)
        return [y, *torch.autograd.grad(y.sin().sum(), [x, *module.parameters()])]

    ours, plain, exact = run(flash_attention, torch.float16), run(dense, torch.float16), run(dense, torch.float64)
    assert len(ours) == 10
    for three in zip(ours, plain, exact, strict=True):
        assert_as_exact_as_plain(*three)


def test_module_has_a_narrower_projection_for_shared_heads():
    module = modules.FlashAttention(64, 8, 2)
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == {
        "q_proj.weight": (64, 64),
        "k_proj.weight": (16, 64),
        "v_proj.weight": (16, 64),
        "o_proj.weight": (64, 64),
    }


@pytest.mark.parametrize("heads", [(5, None), (4, 3)])
def test_module_refuses_heads_that_do_not_divide(heads):
    with pytest.raises(
        ValueError, match="num_heads must divide d_model and be a multiple of num_kv_heads, got d_model=64"
    ):
        modules.FlashAttention(64, *heads)


# transformers


@pytest.fixture
def llama():
    transformers = pytest.importorskip("transformers", reason="transformers is an optional dependency")
    modules.register_with_transformers()
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 97, "max_position_embeddings": 64}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    no_end = {"bos_token_id": None, "eos_token_id": None}
    config = transformers.LlamaConfig(**sizes, **heads, **no_end, initializer_range=0.5)
    return transformers.LlamaForCausalLM(config).to(DEVICE).eval()


def tokens(*shape):
    return torch.randint(97, shape, generator=torch.Generator().manual_seed(0)).to(DEVICE)


def test_a_model_of_transformers_writes_the_same_tokens(llama):
    written = {}
    for implementation in ("eager", "lab_attention"):
        llama.set_attn_implementation(implementation)
        written[implementation] = llama.generate(tokens(2, 11), max_new_tokens=8, do_sample=False, pad_token_id=0)
    assert torch.equal(written["eager"], written["lab_attention"])
    assert len(written["eager"][0].unique()) > 10  # and they are not all one token


def test_a_model_of_transformers_reads_its_prompt_in_parts(llama):
    from transformers import DynamicCache

    llama.set_attn_implementation("eager")
    whole = llama(tokens(1, 11)).logits
    llama.set_attn_implementation("lab_attention")
    cache = DynamicCache(config=llama.config)
    parts = [llama(part, past_key_values=cache).logits for part in tokens(1, 11).split(6, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1]])}, "knows no padding"),
        ({"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]]), "use_cache": False}, "not packed"),
        ({"output_attentions": True}, "was given output_attentions"),
    ],
)
def test_a_model_of_transformers_is_refused_what_needs_a_mask_or_the_weights(llama, options, said):
    llama.set_attn_implementation("lab_attention")
    with pytest.raises(NotImplementedError, match=said):
        llama(tokens(1, 6), **{name: o.to(DEVICE) if torch.is_tensor(o) else o for name, o in options.items()})


def test_a_static_cache_is_refused(llama):
    llama.set_attn_implementation("lab_attention")
    with pytest.raises(NotImplementedError, match="is the cache a static one"):
        llama.generate(tokens(1, 6), max_new_tokens=2, cache_implementation="static", pad_token_id=0)


def test_names_that_transformers_keeps_to_itself_are_refused():
    with pytest.raises(ValueError, match="choose another one than 'flashlab'"):
        modules.register_with_transformers("flashlab")
