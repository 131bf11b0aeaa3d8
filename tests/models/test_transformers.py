"""A model of transformers computes the same with ``flash_attention``, and is refused what would need a mask."""

import pytest
import torch

ours = pytest.importorskip("flashlab.models.transformers", reason="the kernels need triton, which is for Linux")

from flashlab.kernels import DEVICE, flash_attention  # noqa: E402

QKV = [torch.randn(2, heads, 9, 16, generator=torch.Generator().manual_seed(heads)).to(DEVICE) for heads in (4, 2, 2)]


class Layer(torch.nn.Module):
    """A layer of a model, as far as ``attend`` looks at it."""

    def __init__(self, is_causal):
        super().__init__()
        self.is_causal = is_causal


@pytest.mark.parametrize("layer, argument, causal", [(True, None, True), (False, None, False), (True, False, False)])
def test_the_argument_decides_on_causality_and_without_it_the_layer(layer, argument, causal):
    O, weights = ours.attend(Layer(layer), *QKV, None, scaling=0.3, is_causal=argument, sliding_window=9, softcap=None)
    assert weights is None and O.is_contiguous()
    torch.testing.assert_close(O, flash_attention(*QKV, causal=causal, scale=0.3).transpose(1, 2))


@pytest.mark.parametrize(
    "options, said",
    [
        ({"attention_mask": torch.zeros(2, 1, 9, 9)}, "an attention mask"),
        ({"dropout": 0.1}, "dropout=0.1"),
        ({"sliding_window": 8}, "a sliding window"),
        ({"softcap": 30.0}, "softcap"),
        ({"position_bias": torch.zeros(1, 4, 9, 9)}, "position_bias"),
        ({"sinks": torch.zeros(4), "output_attentions": True}, "sinks, output_attentions"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_that_would_change_the_result_are_refused(options, said):
    with pytest.raises(NotImplementedError, match=f"but was given {said}"):
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


@pytest.mark.exhaustive
def test_a_model_of_transformers_writes_the_same_tokens(llama):
    written = {}
    for implementation in ("eager", "lab_attention"):
        llama.set_attn_implementation(implementation)
        written[implementation] = llama.generate(tokens(2, 11), max_new_tokens=8, do_sample=False, pad_token_id=0)
    assert torch.equal(written["eager"], written["lab_attention"])
    assert len(written["eager"][0].unique()) > 10  # and they are not all one token


@pytest.mark.exhaustive
def test_a_model_of_transformers_reads_its_prompt_in_parts(llama):
    from transformers import DynamicCache

    llama.set_attn_implementation("eager")
    whole = llama(tokens(1, 11)).logits
    llama.set_attn_implementation("lab_attention")
    cache = DynamicCache(config=llama.config)
    parts = [llama(part, past_key_values=cache).logits for part in tokens(1, 11).split(6, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "options, said",
    [
        ({"attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1]])}, "supports no padding"),
        ({"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]]), "use_cache": False}, "not packed"),
        ({"output_attentions": True}, "was given output_attentions"),
    ],
)
def test_a_model_of_transformers_is_refused_what_needs_a_mask_or_the_weights(llama, options, said):
    llama.set_attn_implementation("lab_attention")
    with pytest.raises(NotImplementedError, match=said):
        llama(tokens(1, 6), **{name: o.to(DEVICE) if torch.is_tensor(o) else o for name, o in options.items()})


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
def test_a_model_with_a_sliding_window_is_refused(llama):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 97, "max_position_embeddings": 64}
    config = transformers.MistralConfig(**sizes, num_hidden_layers=1, num_attention_heads=4, sliding_window=4)
    model = transformers.MistralModel(config).to(DEVICE).eval()
    model.set_attn_implementation("lab_attention")
    with pytest.raises(NotImplementedError, match="not packed or sliding-window"):
        model(tokens(1, 11))


@pytest.mark.exhaustive
def test_a_static_cache_is_refused(llama):
    llama.set_attn_implementation("lab_attention")
    with pytest.raises(NotImplementedError, match="is the cache a static one"):
        llama.generate(tokens(1, 6), max_new_tokens=2, cache_implementation="static", pad_token_id=0)


def test_names_that_transformers_keeps_to_itself_are_refused():
    with pytest.raises(ValueError, match="choose another one than 'flashlab'"):
        ours.register("flashlab")
