from .common import TINY_WHOLE, WHOLEHEADS, small
from .granitemoehybrid import mamba

MAMBA = {"mamba_d_ssm": 30, "mamba_n_heads": 6, "mamba_d_head": "auto", "mamba_n_groups": 2, "mamba_d_state": 5, "mamba_d_conv": 3}
MULTIPLIERS = {"embedding_multiplier": 2.5, "lm_head_multiplier": 0.4, "attention_out_multiplier": 0.9, "key_multiplier": 0.6, "mlp_multipliers": [0.7, 1.4],
               "ssm_multipliers": [0.8, 1.3, 0.7, 1.2, 0.9], "ssm_out_multiplier": 0.7}
SMALL_H1 = {**WHOLEHEADS, "hidden_size": 24, "intermediate_size": 32, **MAMBA, **MULTIPLIERS, "pad_token_id": None}
MODELS = {
    "falcon_h1": ("falcon_h1", {**SMALL_H1, "attention_in_multiplier": 1.2, "ssm_in_multiplier": 1.1}),
    "falcon_h1_norm": ("falcon_h1", {**SMALL_H1, "mamba_rms_norm": True, "mamba_norm_before_gate": True, "attention_bias": True, "mlp_bias": True,
                                     "mamba_proj_bias": True, "projectors_bias": True, "tie_word_embeddings": True, "time_step_limit": [0.05, 1.0]}),
}
ADAPTERS = {
    "falcon_h1_lora": ("falcon_h1", False, {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "in_proj"], "r": 4, "lora_alpha": 8}),
}


def published(layers, dim, hidden, heads, kv, head, ssm, ssm_heads, ssm_head, state, groups, vocab, context, tied=False):
    """The fields that the published files have in common, with multipliers as they have them."""
    return {
        "architectures": ["FalconH1ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "attention_in_multiplier": 1.0, "attention_out_multiplier": 0.9375,
        "attn_layer_indices": None, "bos_token_id": 1, "embedding_multiplier": 5.656854249492381, "eos_token_id": 11, "head_dim": head, "hidden_act": "silu",
        "hidden_size": dim, "initializer_range": 0.02, "intermediate_size": hidden, "key_multiplier": 0.390625, "lm_head_multiplier": 0.0390625,
        "mamba_chunk_size": 128 if dim == 1024 else 256, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": ssm_head, "mamba_d_ssm": ssm, "mamba_d_state": state,
        "mamba_expand": 2, "mamba_n_groups": groups, "mamba_n_heads": ssm_heads, "mamba_norm_before_gate": False, "mamba_proj_bias": False,
        "mamba_rms_norm": False, "mamba_use_mlp": True, "max_position_embeddings": context, "mlp_bias": False, "mlp_expansion_factor": 8,
        "mlp_multipliers": [0.8838834764831844, 0.5859375], "model_type": "falcon_h1", "num_attention_heads": heads, "num_hidden_layers": layers,
        "num_key_value_heads": kv, "num_logits_to_keep": 1, "pad_token_id": 0, "projectors_bias": False, "rms_norm_eps": 1e-05, "rope_scaling": None,
        "rope_theta": 100000000000.0, "ssm_in_multiplier": 1.25, "ssm_multipliers": [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738],
        "ssm_out_multiplier": 0.23570226039551587, "tie_word_embeddings": tied, "time_step_floor": 0.0001, "time_step_max": 0.1, "time_step_min": 0.001,
        "torch_dtype": "bfloat16", "transformers_version": "4.52.0.dev0", "use_cache": True, "vocab_size": vocab,
    }


PUBLISHED = { # with the sizes of the models, and the multipliers of the smallest
    "falcon-h1-0.5b": published(36, 1024, 2048, 8, 2, 64, 1536, 24, 64, 128, 1, 32784, 16384),
    "falcon-h1-1.5b": published(24, 2048, 4096, 8, 2, 128, 3072, 48, 64, 256, 1, 65537, 131072),
    "falcon-h1-1.5b-deep": published(66, 1280, 3840, 6, 2, 128, 1536, 24, 64, 256, 1, 65537, 131072),
    "falcon-h1-3b": published(32, 2560, 10240, 10, 2, 128, 4096, 32, 128, 256, 1, 65537, 131072),
    "falcon-h1-7b": published(44, 3072, 12288, 12, 2, 128, 3072, 24, 128, 256, 1, 130049, 262144),
    "falcon-h1-34b": published(72, 5120, 21504, 20, 4, 128, 8192, 32, 256, 256, 2, 261120, 262144),
}
SPELLINGS = {
    "falcon_h1, norm": small("falcon_h1", mamba_d_ssm=None, mamba_n_heads=12, mamba_n_groups=3, mamba_rms_norm=True, mamba_proj_bias=True, projectors_bias=True,
                             attention_bias=True, mlp_bias=True, time_step_limit=[0.01, 2.0]),
    "falcon_h1, norm behind": small("falcon_h1", mamba_d_ssm=60, mamba_n_heads=12, mamba_rms_norm=True, mamba_norm_before_gate=False, mamba_conv_bias=False, key_multiplier=0.5,
                                    num_key_value_heads=None),
}
DEFAULTS = ["falcon_h1"]
FIELDS = {
    "falcon_h1": {**TINY_WHOLE, "mamba_chunk_size": 8, "mamba_d_ssm": 24, "mamba_n_heads": 6, "mamba_n_groups": 2, "mamba_d_state": 3},
}


def name_as_llama(config, body):
    also = object.__setattr__  # which registers nothing
    also(body, "norm", body.final_layernorm)
    for layer in body.layers:
        also(layer, "mlp", layer.feed_forward)
        layer.self_attn.scaling *= config.key_multiplier * config.attention_in_multiplier ** 2
    if config.lm_head_multiplier != 1:
        config.logits_scaling = 1 / config.lm_head_multiplier


def extra(config, body):
    scale = lambda x: 0 if x == 1 else x  # noqa: E731
    gate, down = config.mlp_multipliers
    out = {**mamba(config, [layer.mamba for layer in body.layers]), "Beside": True, "OutFactor": scale(config.ssm_out_multiplier),
           "Factors": [scale(x * config.ssm_in_multiplier) for x in config.ssm_multipliers]}
    return {"Mixers": ["mamba2"] * len(body.layers), "Mamba": out,
            "Factors": {"Attention": scale(config.attention_in_multiplier * config.attention_out_multiplier), "Gate": scale(gate), "MLP": scale(down)}}
