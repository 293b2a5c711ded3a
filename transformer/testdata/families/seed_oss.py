from .common import SMALL, TINY, small

MODELS = {
    "seed_oss": ("seed_oss", {**SMALL, "attention_out_bias": True, "mlp_bias": True, "attention_dropout": 0.0, "residual_dropout": 0.0, "pad_token_id": None}),
}
PUBLISHED = {
    "seed-oss-36b": {
        "architectures": ["SeedOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.1, "attention_out_bias": False, "bos_token_id": 0,
        "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 27648,
        "max_position_embeddings": 524288, "mlp_bias": False, "model_type": "seed_oss", "num_attention_heads": 80, "num_hidden_layers": 64,
        "num_key_value_heads": 8, "pad_token_id": 1, "residual_dropout": 0.1, "rms_norm_eps": 1e-06, "rope_scaling": {"rope_type": "default"},
        "rope_theta": 10000000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.55.0", "use_cache": True,
        "vocab_size": 155136,
    },
}
SPELLINGS = {
    "seed_oss, biases": small("seed_oss", attention_bias=False, attention_out_bias=True, mlp_bias=True, head_dim=16, residual_dropout=0.0),
}
DEFAULTS = ["seed_oss"]
FIELDS = {
    "seed_oss": {**TINY, "attention_dropout": 0.0, "residual_dropout": 0.0},
}
GGUF = {
    "seed_oss": ("seed_oss", dict(attention_bias=True, attention_out_bias=False)),
}
