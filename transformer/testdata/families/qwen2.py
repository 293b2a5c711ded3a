from .common import ALL, SMALL, TINY, small

MODELS = {
    "qwen2": ("qwen2", {**{k: v for k, v in SMALL.items() if k != "head_dim"}, "use_sliding_window": True, "sliding_window": 6,
                        "max_window_layers": 1, "tie_word_embeddings": True}),
}
ADAPTERS = {
    "qwen2_nf4": ("qwen2", True, {"target_modules": r".*\.(q_proj|k_proj|up_proj)", "r": 4, "lora_alpha": 8}),
    "qwen2_saved_nf4": ("qwen2", True, {**ALL, "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
    "qwen2_vera_nf4": ("qwen2", True, {"vera": True, "target_modules": ["q_proj", "down_proj"], "r": 24, "save_projection": False, "modules_to_save": ["norm"]}),
}
PUBLISHED = {
    "qwen2.5-0.5b": {
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
        "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
        "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
        "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": True,
        "use_mrope": False, "use_sliding_window": False, "vocab_size": 151936,
    },
}
SPELLINGS = {
    "qwen2, windows": small("qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=3),
    "qwen2, types": small("qwen2", use_sliding_window=True, sliding_window=9,
                          layer_types=["full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]),
    "qwen2, yarn": small("qwen2", rope_theta=1e6, rope_scaling={"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}),
}
DEFAULTS = ["qwen2"]
FIELDS = {
    "qwen2": TINY,
}
GGUF = {
    "qwen2": ("qwen2", {}),
}
