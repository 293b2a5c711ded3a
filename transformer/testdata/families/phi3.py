from .common import ALL, ONE, SMALL, TINY, small

MODELS = {
    "phi3": ("phi3", {**SMALL, "num_attention_heads": 4, "sliding_window": 7, "pad_token_id": None,
                      "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.6}}),
    "phi3_long": ("phi3", {**ONE, "head_dim": 8, "pad_token_id": None, "original_max_position_embeddings": 8, "tie_word_embeddings": True, "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 1e3, "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.0, 2.5, 6.0], "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 8}}),
}
ADAPTERS = {
    "phi3_lora": ("phi3", False, ALL),
}
PUBLISHED = {
    "phi-3-mini-4k": {
        "_name_or_path": "Phi-3-mini-4k-instruct", "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 1, "embd_pdrop": 0.0, "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02,
        "intermediate_size": 8192, "max_position_embeddings": 4096, "model_type": "phi3", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "original_max_position_embeddings": 4096, "pad_token_id": 32000, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "rope_theta": 10000.0, "sliding_window": 2047, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "transformers_version": "4.40.2", "use_cache": True, "vocab_size": 32064,
    },
    "phi-4": {
        "_name_or_path": "phi-4", "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 100257,
        "embd_pdrop": 0.0, "eos_token_id": 100265, "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 17920,
        "max_position_embeddings": 16384, "model_type": "phi3", "num_attention_heads": 40, "num_hidden_layers": 40, "num_key_value_heads": 10,
        "original_max_position_embeddings": 16384, "pad_token_id": 100349, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": None,
        "rope_theta": 250000, "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.47.0",
        "use_cache": True, "vocab_size": 100352,
    },
    "phi-4-mini": {  # the factors are not the published ones
        "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 199999, "embd_pdrop": 0.0,
        "eos_token_id": 199999, "full_attn_mod": 1, "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 8192,
        "interpolate_factor": 1, "lm_head_bias": False, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "phi3",
        "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8, "original_max_position_embeddings": 4096,
        "pad_token_id": 199999, "partial_rotary_factor": 0.75, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
        "rope_scaling": {"long_factor": [1 + i / 3 for i in range(48)], "short_factor": [1.0] * 48, "type": "longrope"}, "rope_theta": 10000.0,
        "sliding_window": 262144, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.45.0", "use_cache": True,
        "vocab_size": 200064,
    },
}
SPELLINGS = {
    "phi3, su": small("phi3", pad_token_id=None, max_position_embeddings=64, original_max_position_embeddings=32, rope_scaling={
        "type": "su", "short_factor": [1.0] * 6, "long_factor": [2.5] * 6, "original_max_position_embeddings": 32}),
    "phi3, attention factor": small("phi3", pad_token_id=None, max_position_embeddings=64, original_max_position_embeddings=32, sliding_window=5, partial_rotary_factor=0.5,
                                    rope_scaling={"type": "longrope", "short_factor": [1.0] * 3, "long_factor": [2.5, 3, 4], "attention_factor": 1.3}),
}
FIELDS = {
    "phi3": TINY,
}
GGUF = {
    "phi3": ("phi3", dict(sliding_window=64, pad_token_id=None)),
    "phi3_long": ("phi3", dict(pad_token_id=None, original_max_position_embeddings=32, rope_parameters=dict(
    rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.5, 2.0], long_factor=[1.0, 2.5, 6.0], partial_rotary_factor=0.75))),
}
