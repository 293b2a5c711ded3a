from .common import SMALL, TINY, small

MODELS = {
    "smollm3": ("smollm3", {**SMALL, "num_hidden_layers": 3, "no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 6, "pad_token_id": None,
                            "mlp_bias": True, "tie_word_embeddings": False}),
}
PUBLISHED = {
    "smollm3-3b": {
        "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": None, "eos_token_id": 128012,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 11008, "layer_types": ["full_attention"] * 36,
        "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": False, "model_type": "smollm3", "no_rope_layer_interval": 4,
        "no_rope_layers": [1, 1, 1, 0] * 9, "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4, "pad_token_id": 128004,
        "pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None, "torch_dtype": "bfloat16",
        "transformers_version": "4.54.0.dev0", "use_cache": False, "use_sliding_window": False, "vocab_size": 128256,
    },
}
SPELLINGS = {
    "smollm3, intervals": small("smollm3", pad_token_id=None, no_rope_layer_interval=3, use_sliding_window=True, sliding_window=9),
    "smollm3, types": small("smollm3", pad_token_id=None, no_rope_layers=[0, 1, 1, 1, 0, 1], use_sliding_window=True, sliding_window=9,
                            layer_types=["full_attention", "sliding_attention", "full_attention", "full_attention", "sliding_attention"]),
}
FIELDS = {
    "smollm3": TINY,
}
GGUF = {
    "smollm3": ("smollm3", dict(num_hidden_layers=5, pad_token_id=None)),
}
