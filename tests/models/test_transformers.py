"""A model of transformers computes the same with ``flash_attention``, for all its masks, score functions and caches."""

import pytest
import torch

ours = pytest.importorskip("flashlab.models.transformers", reason="the kernels need triton, which is for Linux")

from flashlab.kernels import DEVICE, flash_attention, masks, scores  # noqa: E402
from tests.models import tiny  # noqa: E402

pytestmark = pytest.mark.exhaustive
QKV = [torch.randn(2, heads, 9, 16, generator=torch.Generator().manual_seed(heads)).to(DEVICE) for heads in (4, 2, 2)]


class Layer(torch.nn.Module):
    """A layer of a model, with the one attribute that ``attend`` reads."""

    def __init__(self, is_causal):
        super().__init__()
        self.is_causal = is_causal


@pytest.mark.parametrize("layer, argument, causal", [(True, None, True), (False, None, False), (True, False, False)])
def test_is_causal_is_that_of_the_argument_or_else_of_the_layer(layer, argument, causal):
    O, weights = ours.attend(Layer(layer), *QKV, None, scaling=0.3, is_causal=argument, sliding_window=9, softcap=None)
    assert weights is None and O.is_contiguous()
    torch.testing.assert_close(O, flash_attention(*QKV, causal=causal, scale=0.3).transpose(1, 2))


def lazy(rule, write=None):
    return ours.Mask.of(rule, write, (2, 1, 9, 9), torch.float32, DEVICE)


def test_windows_caps_sinks_and_masks_reach_the_kernels():
    sinks = torch.tensor([0.1, 0.2, 0.3, 0.4], device=DEVICE)
    padding = torch.ones(2, 9, dtype=torch.bool, device=DEVICE)
    padding[0, :3] = False
    added = torch.randn(1, 4, 9, 9, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    padded = masks.dense(padding[:, None, None])
    for keywords, mask, options in (
        ({"sliding_window": 4}, masks.window(3), {}),
        ({"sliding_window": 9}, masks.causal(), {}),
        ({"softcap": 0.5, "s_aux": sinks}, masks.causal(), {"score": scores.softcap(0.5), "sinks": sinks}),
        ({"attention_mask": lazy(masks.window(3) & padded)}, masks.window(3) & padded, {}),
        ({"attention_mask": padding[:, None, None]}, padded, {}),
        ({"attention_mask": added, "softcap": 2.0}, None, {"score": (scores.softcap(2.0), scores.bias(added))}),
    ):
        O, _ = ours.attend(Layer(True), *QKV, keywords.pop("attention_mask", None), **keywords)
        torch.testing.assert_close(O, flash_attention(*QKV, mask=mask, **options).transpose(1, 2))


def test_a_mask_whose_numbers_a_model_has_read_or_changed_is_applied_as_numbers():
    numbers = torch.zeros(2, 1, 9, 9, device=DEVICE).masked_fill(~lower_triangle(), torch.finfo(torch.float32).min)
    mask = lazy(masks.causal(), lambda: numbers.clone())
    assert (mask.shape, mask.dtype, mask.dim(), mask.rule) == ((2, 1, 9, 9), torch.float32, 4, masks.causal())
    expected = ours.attend(Layer(False), *QKV, mask)[0]
    torch.testing.assert_close(expected, flash_attention(*QKV, causal=True).transpose(1, 2))
    assert torch.equal(torch.cat([mask, mask], 1)[:, 1:], numbers) and mask.rule is None
    torch.testing.assert_close(ours.attend(Layer(False), *QKV, mask)[0], expected)
    mask[:, :, :, 5:] = torch.finfo(torch.float32).min
    hidden = masks.causal() & masks.sinks(5)
    torch.testing.assert_close(
        ours.attend(Layer(False), *QKV, mask)[0], flash_attention(*QKV, mask=hidden).transpose(1, 2)
    )


def lower_triangle():
    return torch.ones(9, 9, dtype=torch.bool, device=DEVICE).tril()


def test_incomplete_masks_are_refused():
    with pytest.raises(ValueError, match=r"must have the dimensions \[B, H, Nq, Nk\], got shape \[2, 9\]"):
        ours.attend(Layer(True), *QKV, torch.ones(2, 9, dtype=torch.bool, device=DEVICE))
    with pytest.raises(ValueError, match="Identity must pass attention_mask or is_causal: it passed neither"):
        ours.attend(torch.nn.Identity(), *QKV, None)
    with pytest.raises(ValueError, match="sliding_window must be a whole number from 1 on, got 0"):
        ours.attend(Layer(True), *QKV, None, sliding_window=0)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"is_causal": False, "sliding_window": 8}, "a sliding window that is not causal"),
        ({"position_bias": torch.zeros(1, 4, 9, 9)}, "position_bias"),
        ({"head_mask": torch.zeros(4), "output_attentions": True}, "head_mask, output_attentions"),
        ({"cache": object()}, "cache"),  # pages of keys
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_that_would_change_the_result_are_refused(options, message):
    with pytest.raises(NotImplementedError, match=f"does not support: {message}"):
        ours.attend(Layer(True), *QKV, **({"attention_mask": None} | options))


@pytest.fixture
def llama():
    transformers = pytest.importorskip("transformers", reason="make test-all installs transformers")
    ours.register()
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


def states(model, *args, **options):
    """Return the last hidden states, with transformers' own attention and with ours."""
    outputs = []
    for implementation in ("eager", "lab_attention"):
        model.set_attn_implementation(implementation)
        outputs.append(model(*args, **options).last_hidden_state)
    return outputs


def test_padded_and_packed_batches_compute_the_same(llama):
    padding = torch.ones(2, 11, dtype=torch.long, device=DEVICE)
    padding[0, :4] = 0
    theirs, mine = states(llama.model, tokens(2, 11), attention_mask=padding)
    torch.testing.assert_close(mine[padding > 0], theirs[padding > 0], rtol=1e-4, atol=1e-4)
    places = torch.tensor([[0, 1, 2, 3, 0, 1, 2]], device=DEVICE)
    theirs, mine = states(llama.model, tokens(1, 7), position_ids=places, use_cache=False)
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_a_padded_batch_writes_the_same_tokens(llama):
    padding = torch.ones(2, 11, dtype=torch.long, device=DEVICE)
    padding[0, :4] = 0
    written = []
    for implementation in ("eager", "lab_attention"):
        llama.set_attn_implementation(implementation)
        written.append(
            llama.generate(tokens(2, 11), attention_mask=padding, max_new_tokens=6, do_sample=False, pad_token_id=0)
        )
    assert torch.equal(*written)


def test_weights_are_not_returned(llama):
    llama.set_attn_implementation("lab_attention")
    with pytest.raises(NotImplementedError, match="output_attentions"):
        llama(tokens(1, 6), output_attentions=True)


@pytest.mark.parametrize("kind", ["GPTNeoX", "Bert"])
def test_other_models_of_transformers_compute_the_same(kind, llama):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 97, "max_position_embeddings": 64}
    config = getattr(transformers, f"{kind}Config")(**sizes, num_hidden_layers=2, num_attention_heads=4)
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}Model")(config).to(DEVICE).eval()
    states = {}
    for implementation in ("eager", "lab_attention"):
        model.set_attn_implementation(implementation)
        states[implementation] = model(tokens(2, 11)).last_hidden_state
    torch.testing.assert_close(states["lab_attention"], states["eager"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["Mistral", "Gemma2", "GptOss"])
def test_models_with_windows_caps_and_sinks_compute_the_same(kind, llama):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 97, "max_position_embeddings": 64}
    more = {"Gemma2": {"attn_logit_softcapping": 0.5}, "GptOss": {"num_local_experts": 2, "num_experts_per_tok": 1}}
    config = getattr(transformers, f"{kind}Config")(
        **sizes, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=4,
        bos_token_id=None, eos_token_id=None, pad_token_id=None, **more.get(kind, {}),
    )  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(DEVICE).eval()
    built = []
    dense_mask = ours.masks.dense

    def dense(visible):
        built.append(visible.shape)
        return dense_mask(visible)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ours.masks, "dense", dense)
        theirs, mine = states(model.model, tokens(2, 11))
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
        written = []
        for implementation in ("eager", "lab_attention"):
            model.set_attn_implementation(implementation)
            written.append(model.generate(tokens(2, 11), max_new_tokens=8, do_sample=False, pad_token_id=0))
    assert torch.equal(*written)
    assert not built  # no dense mask


def test_a_static_cache_computes_the_same(llama):
    written = []
    for implementation in ("eager", "lab_attention"):
        llama.set_attn_implementation(implementation)
        options = {"cache_implementation": "static", "pad_token_id": 0, "do_sample": False, "disable_compile": True}
        written.append(llama.generate(tokens(2, 6), max_new_tokens=4, **options))
    assert torch.equal(*written)


def test_names_that_transformers_uses_itself_are_refused():
    with pytest.raises(ValueError, match="choose another one than 'flashlab'"):
        ours.register("flashlab")
    for name in ("sdpa", "flex_attention", "eager"):
        with pytest.raises(ValueError, match=f"transformers has an attention of its own called '{name}'"):
            ours.register(name)


def tokens_and_padding():
    """Return tokens and their attention mask, both [2, 11]: the first text is padded on the left, the second right."""
    padding = torch.ones(2, 11, dtype=torch.long, device=DEVICE)
    padding[0, :4] = 0
    padding[1, -3:] = 0
    return 3 + tokens(2, 11) % 60, padding


def with_gradient(model):
    model.zero_grad()
    logits = model(tokens_and_padding()[0], use_cache=False).logits
    logits.backward(torch.randn(logits.shape, generator=torch.Generator().manual_seed(0)).to(DEVICE))
    return [logits.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])]


@torch.no_grad()
def padded(model):
    ids, padding = tokens_and_padding()
    return [model(ids, attention_mask=padding, use_cache=False).logits[padding > 0]]


def generated(model, **options):
    ids, padding = tokens_and_padding()
    padding[1] = 1
    options |= {"max_new_tokens": 2, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    written = model.generate(ids, attention_mask=padding, disable_compile=True, **options)
    return [torch.stack(written.logits)]


def in_a_static_cache(model):
    return generated(model, cache_implementation="static")


@torch.no_grad()
def in_parts(model):
    ids, _ = tokens_and_padding()
    first = model(ids[:, :6], use_cache=True)
    return [model(ids[:, 6:], past_key_values=first.past_key_values, use_cache=True).logits]


RUNS = with_gradient, padded, generated, in_a_static_cache, in_parts


@pytest.mark.parametrize("kind", tiny.kinds())
def test_every_causal_model_computes_as_with_eager_attention(kind, monkeypatch):
    transformers = pytest.importorskip("transformers", reason="make test-all installs transformers")
    calls = []

    def attend(*args, **options):
        calls.append(options)
        return ours.attend(*args, **options)

    ours.register()
    transformers.AttentionInterface.register("lab_attention", attend)
    if kind in tiny.UNBUILT:
        with pytest.raises(Exception, match=tiny.UNBUILT[kind]):
            with_gradient(tiny.build(kind).to(DEVICE))
        return
    model = tiny.build(kind).to(DEVICE)
    broken = tiny.NOT_IN_EAGER.get(kind, ())
    for run in RUNS:
        if run.__name__ in broken:
            with pytest.raises((AttributeError, KeyError)):
                run(model)
    runs = [run for run in RUNS if run.__name__ not in broken]
    theirs = [run(model) for run in runs[: 1 if kind in tiny.OWN or kind in tiny.REFUSED else None]]
    model.set_attn_implementation("lab_attention")
    if kind in tiny.REFUSED:
        with pytest.raises(NotImplementedError, match=f"does not support: {tiny.REFUSED[kind]}$"):
            padded(model)
        return
    for run, expected in zip(runs, theirs, strict=kind not in tiny.OWN):
        for x, y in zip(run(model), expected, strict=True):
            error, size = (x - y).abs().max(), y.abs().max()
            assert error <= 2e-5 * size, f"{run.__name__}: {error:.2g} of {size:.2g}"
    assert bool(calls) == (kind not in tiny.OWN)


def test_the_lists_name_only_causal_models():
    pytest.importorskip("transformers", reason="make test-all installs transformers")
    listed = [*tiny.UNBUILT, *tiny.OWN, *tiny.REFUSED, *tiny.NOT_IN_EAGER]
    assert len(set(listed)) == len(listed) and set(listed) <= set(tiny.kinds())
