from .common import SMALL, TINY, small

MODELS = {
    "qwen3": ("qwen3", {**SMALL, "tie_word_embeddings": False}),
}
PUBLISHED = {
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
        "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
    },
}
SPELLINGS = {
    "qwen3, bias": small("qwen3", attention_bias=True, head_dim=16, tie_word_embeddings=True),
    "qwen3, yarn, new": small("qwen3", head_dim=16, max_position_embeddings=131072, rope_parameters={
        "rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "attention_factor": 1.25}),
}
DEFAULTS = ["qwen3"]
FIELDS = {
    "qwen3": TINY,
}
GGUF = {
    "qwen3": ("qwen3", dict(head_dim=16)),
}
