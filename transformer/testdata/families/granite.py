from .common import ALL, TINY_WHOLE, WHOLEHEADS, small

MODELS = {
    "granite": ("granite", {**WHOLEHEADS, "attention_bias": True, "embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.3,
                            "logits_scaling": 6.0}),
}
ADAPTERS = {
    "granite_lora": ("granite", False, ALL),
}
PUBLISHED = {
    "granite-3.3-8b": {
        "architectures": ["GraniteForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "attention_multiplier": 0.0078125, "bos_token_id": 0,
        "embedding_multiplier": 12.0, "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 12800,
        "logits_scaling": 16.0, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "granite", "num_attention_heads": 32,
        "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 0, "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": None,
        "rope_theta": 10000000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.49.0", "use_cache": True,
        "vocab_size": 49159,
    },
}
SPELLINGS = {
    "granite, factors": small("granite", attention_bias=True, mlp_bias=True, embedding_multiplier=12, attention_multiplier=0.0625, residual_multiplier=0.22,
                              logits_scaling=6.0, rope_theta=1e6),
}
DEFAULTS = ["granite"]
FIELDS = {
    "granite": TINY_WHOLE,
}
