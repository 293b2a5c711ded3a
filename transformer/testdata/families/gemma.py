from .common import SMALL, TINY, around_zero, small

GGUF_GEMMA = dict(tie_word_embeddings=True, head_dim=16)

MODELS = {
    "gemma": ("gemma", {**SMALL, "pad_token_id": None, "attention_bias": True}),
}
PUBLISHED = {
    "gemma-2b": {
        "architectures": ["GemmaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 2, "eos_token_id": 1,
        "head_dim": 256, "hidden_act": "gelu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 16384,
        "max_position_embeddings": 8192, "model_type": "gemma", "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1,
        "pad_token_id": 0, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000.0, "torch_dtype": "bfloat16",
        "transformers_version": "4.38.0.dev0", "use_cache": True, "vocab_size": 256000,
    },
}
SPELLINGS = {
    "gemma, bias": small("gemma", head_dim=16, attention_bias=True, hidden_act="silu", tie_word_embeddings=False),
}
DEFAULTS = ["gemma"]
FIELDS = {
    "gemma": TINY,
}
GGUF = {
    "gemma": ("gemma", GGUF_GEMMA),
}
initial = around_zero
