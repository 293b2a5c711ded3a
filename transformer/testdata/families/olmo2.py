from .common import ALL, TINY_WHOLE, WHOLEHEADS, small

MODELS = {
    "olmo2": ("olmo2", {**WHOLEHEADS, "pad_token_id": None, "attention_bias": True, "tie_word_embeddings": False}),
}
ADAPTERS = {
    "olmo2_lora": ("olmo2", False, ALL),
}
PUBLISHED = {
    "olmo-2-7b": {
        "architectures": ["Olmo2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "eos_token_id": 100257, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "olmo2",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 100277, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 500000, "tie_word_embeddings": False, "torch_dtype": "float32", "transformers_version": "4.47.0.dev0", "use_cache": True,
        "vocab_size": 100352,
    },
}
SPELLINGS = {
    "olmo2, bias": small("olmo2", pad_token_id=None, attention_bias=True, rope_theta=5e5, num_key_value_heads=None, rope_scaling={
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}),
}
DEFAULTS = ["olmo2"]
FIELDS = {
    "olmo2": TINY_WHOLE,
}
