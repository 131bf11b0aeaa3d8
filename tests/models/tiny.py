"""Tiny models of transformers with random weights, one for each kind in the package's list of causal models."""

import torch

SIZES = {  # value: attributes of configurations
    0: "first_k_dense_replace hidden_size_per_layer_input num_kv_shared_layers pad_token_id",
    1: "attn_layer_offset expert_layer_offset n_shared_experts num_shared_experts topk_group",
    2: "attn_layer_period conv_L_cache decoder_layers encoder_layers expert_layer_period linear_num_key_heads moe_k "
    "moe_num_heads moe_topk n_group n_layer n_layers num_experts_per_tok num_experts_per_token num_hidden_layers "
    "num_key_value_heads num_layers top_k_experts",
    4: "decoder_attention_heads encoder_attention_heads linear_num_value_heads moe_num_experts n_head n_heads "
    "n_routed_experts num_attention_heads num_experts num_local_experts",
    5: "sliding_window window_size",
    8: "attention_head_size head_dim key_head_dim kv_channels kv_lora_rank linear_key_head_dim linear_value_head_dim "
    "mamba_d_head mamba_d_state mamba_headdim mamba_n_heads n_mamba_heads q_lora_rank qk_nope_head_dim "
    "qk_rope_head_dim rotary_dim ssm_state_size state_size v_head_dim",
    32: "d_model dim emb_dim embedding_size encoder_hidden_size hidden_size n_embd",
    48: "decoder_ffn_dim encoder_ffn_dim ffn_dim ffn_hidden_size intermediate_size moe_intermediate_size n_inner "
    "shared_expert_intermediate_size",
    64: "max_position_embeddings max_target_positions n_positions vocab_size",
}
VALUES = {name: size for size, names in SIZES.items() for name in names.split()}
VALUES |= {"is_decoder": True, "use_sliding_window": True}
MORE = {  # further attributes that single kinds need
    "bamba": {"attn_layer_indices": [1]},
    "dbrx": {"attn_config": {"clip_qkv": 8, "kv_n_heads": 2, "rope_theta": 1e4}},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma4_text": {"global_head_dim": 8},
    "gemma4_unified_text": {"global_head_dim": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "phi4_multimodal_audio": {"hidden_size": 32, "intermediate_size": 48, "num_blocks": 1},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
}


UNBUILT = {  # kinds that transformers does not build or run with these sizes, and a part of its error
    "blt": "mat1 and mat2 shapes cannot be multiplied",  # its patches have other sizes
    "cohere_compass_text": "full_attention",  # needs rotations for layers of two types
    "dots3_note": "layer indices in the range",  # settings for layer 41
    "gemma3n": "timm",  # reads images with another package
    "gemma4_assistant": "hidden_size_per_layer_input must be 0",
    "gemma4_unified_assistant": "set of layer types producing a cache",
    "mamba2": "hidden_size",  # has no attention
    "musicgen": "no attribute 'dropout'",  # made of three models
    "musicgen_melody": "no attribute 'dropout'",
    "qwen4_exp": "unsupported operand",
    "qwen4_exp_text": "unsupported operand",
    "reformer": "axial_pos_embds",
    "zamba": "tie_weights_keys",  # shares weights with layers that a model of two layers lacks
    "zamba2": "1",
}
OWN = {  # kinds that do not use the attention of ``set_attn_implementation``
    "big_bird", "bloom", "codegen", "cpmant", "falcon", "falcon_mamba", "git", "gpt_neo", "gpt_neox_japanese", "gptj",
    "mamba", "megatron-bert", "mpt", "mvp", "openai-gpt", "prophetnet", "rembert", "roformer", "rwkv", "trocr", "xglm",
    "xlm", "xlnet", "xlstm",
}  # fmt: skip
REFUSED = {  # kinds whose layers pass options of ``models.transformers.CANNOT``, and these options
    "axk2": "indices",
    "deepseek_v32": "indices",
    "dots3_note_text": "indices",
    "glm_moe_dsa": "indices",
    "hy_v4": "indices",
    "inkling2_text": "sinks, position_bias",
    "inkling_text": "position_bias",
}
NOT_IN_EAGER = {  # kinds, and their runs in test_transformers that fail with eager attention, too
    "deepseek_v4": {"in_a_static_cache"},
    "recurrent_gemma": {"in_parts"},  # its output has no cache
}


def kinds():
    """Return the names of the causal models of the installed transformers; none if it is not installed."""
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    except ImportError:
        return []
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def build(kind):
    """Return a model with ``"eager"`` attention, in evaluation mode. The same kind has the same weights."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config(CONFIG_MAPPING[kind]), attn_implementation="eager").eval()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return model


def config(cls):
    """Return a configuration of a class with small sizes: two layers, or one of each type."""
    default, more = cls(), MORE.get(cls.model_type, {})
    values = {name: value for name, value in VALUES.items() if _is_number(default, name)}
    if "kv_lora_rank" in values and "num_key_value_heads" in values:
        values["num_key_value_heads"] = values["num_attention_heads"]
    types = getattr(default, "layer_types", None)
    if isinstance(types, list) and _can_set(cls, "layer_types"):
        windows = ["sliding_attention"] * hasattr(default, "use_sliding_window")  # off in the default configuration
        types = list(dict.fromkeys(windows + types))
        values["layer_types"] = types * 2 if len(types) == 1 else types
        values["num_hidden_layers"] = len(values["layer_types"])
    for name in cls.sub_configs:
        part = getattr(default, name, None)
        if part is not None and (_is_number(part, "num_hidden_layers") or part.model_type in MORE):
            values[name] = config(type(part))
    return cls(**values | more)


def _is_number(default, name):
    try:
        value = getattr(default, name)
    except Exception:  # there is no such attribute, or each layer has its own
        return False
    return _can_set(type(default), name) and (value is None or isinstance(value, int))


def _can_set(cls, name):
    return not any(isinstance(getattr(cls, n, None), property) for n in (name, cls.attribute_map.get(name, name)))
