from transformers.activations import ACT2FN

from .common import ALL, SMALL, TINY, small
MODELS = {
    "lfm2": ("lfm2", {**SMALL, "num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "conv"], "conv_bias": True, "conv_L_cache": 4,
                      "block_auto_adjust_ff_dim": False, "pad_token_id": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e3}}),
}
ADAPTERS = {
    "lfm2_lora": ("lfm2", False, ALL),
}
PUBLISHED = {
    "lfm2-1.2b": {
        "architectures": ["Lfm2ForCausalLM"], "block_auto_adjust_ff_dim": True, "block_dim": 2048, "block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0,
        "block_mlp_init_scale": 1.0, "block_multiple_of": 256, "block_norm_eps": 1e-05, "block_out_init_scale": 1.0, "block_use_swiglu": True,
        "block_use_xavier_init": True, "bos_token_id": 1, "conv_L_cache": 3, "conv_bias": False, "conv_dim": 2048, "conv_dim_out": 2048,
        "conv_use_xavier_init": True, "eos_token_id": 7, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 2048, "initializer_range": 0.02,
        "max_position_embeddings": 128000, "model_type": "lfm2", "norm_eps": 1e-05, "num_attention_heads": 32, "num_heads": 32, "num_hidden_layers": 16,
        "num_key_value_heads": 8, "pad_token_id": 0, "rope_theta": 1000000.0, "tie_embedding": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.54.0.dev0", "use_cache": True, "use_pos_enc": True, "vocab_size": 65536,
    },
}
SPELLINGS = {
    "lfm2, multiples": small("lfm2", pad_token_id=None, block_multiple_of=7, block_ffn_dim_multiplier=1.3, full_attn_idxs=[1, 4], conv_bias=True, conv_L_cache=5),
    "lfm2, multiplier": small("lfm2", pad_token_id=None, block_ffn_dim_multiplier=2, tie_embedding=False),
    "lfm2, types": small("lfm2", pad_token_id=None, block_auto_adjust_ff_dim=False, block_ff_dim=56, layer_types=["conv", "full_attention"] * 2 + ["conv"]),
}
FIELDS = {
    "lfm2": {**TINY, "full_attn_idxs": [1]},
}


def name_as_llama(config, body):
    also = object.__setattr__  # which registers nothing
    also(body, "norm", body.embedding_norm)
    attention = next(layer.self_attn for layer in body.layers if hasattr(layer, "self_attn"))
    also(attention, "o_proj", attention.out_proj)
    also(attention, "q_norm", attention.q_layernorm)
    for layer in body.layers:
        mlp = layer.feed_forward
        also(layer, "self_attn", attention)
        also(layer, "mlp", mlp)
        for name, module in {"gate_proj": mlp.w1, "down_proj": mlp.w2, "act_fn": ACT2FN["silu"]}.items():
            also(mlp, name, module)
    config.intermediate_size = mlp.w1.out_features


def extra(config, body):
    mixers = ["" if layer.is_attention_layer else "short_conv" for layer in body.layers]
    return {"Mixers": mixers if any(mixers) else None, "ConvTaps": config.conv_L_cache, "ConvBias": config.conv_bias}
