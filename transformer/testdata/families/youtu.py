from .common import ALL, LATENT, TINY_LATENT

MODELS = {
    "youtu": ("youtu", {**LATENT, "num_hidden_layers": 1, "initializer_range": 0.02, "tie_word_embeddings": True}),
}
ADAPTERS = {
    "youtu_nf4": ("youtu", True, ALL),
}
PUBLISHED = {
    "youtu-llm-2b": {
        "architectures": ["YoutuForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "kv_lora_rank": 512, "max_position_embeddings": 131072, "mlp_bias": False,
        "model_type": "youtu", "num_attention_heads": 16, "num_hidden_layers": 32, "num_key_value_heads": 16, "q_lora_rank": 1536, "qk_head_dim": 192,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_interleave": True, "rope_scaling": None, "rope_theta": 1600000,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.56.0", "use_cache": True, "v_head_dim": 128, "vocab_size": 128256,
    },
}
names_only = True
FIELDS = {
    "youtu": TINY_LATENT,
}
