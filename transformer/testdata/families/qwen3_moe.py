from .common import SMALL, TINY, clear_logits, small

MODELS = {
    "qwen3_moe": ("qwen3_moe", {**SMALL, "num_hidden_layers": 3, "moe_intermediate_size": 12, "num_experts": 5, "num_experts_per_tok": 2,
                                "mlp_only_layers": [1], "norm_topk_prob": False, "tie_word_embeddings": False}),
    "qwen3_moe_norm": ("qwen3_moe", {**SMALL, "moe_intermediate_size": 12, "num_experts": 6, "num_experts_per_tok": 3, "decoder_sparse_step": 2,
                                     "norm_topk_prob": True, "attention_bias": True, "use_sliding_window": True, "sliding_window": 6,
                                     "tie_word_embeddings": True}),
}
PUBLISHED = {
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
        "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
        "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
    },
}
SPELLINGS = {
    "qwen3_moe, dense": small("qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, decoder_sparse_step=2, mlp_only_layers=[3],
                              attention_bias=True, use_sliding_window=True, sliding_window=5, max_window_layers=2, tie_word_embeddings=True),
}
DEFAULTS = ["qwen3_moe"]
FIELDS = {
    "qwen3_moe": {**TINY, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8},
}
GGUF = {
    "qwen3_moe": ("qwen3_moe", dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True)),
}
clear = clear_logits
