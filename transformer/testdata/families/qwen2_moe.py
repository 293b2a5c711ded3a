from .common import SOME, TINY_WHOLE, WHOLEHEADS, clear_logits

MODELS = {
    "qwen2_moe": ("qwen2_moe", {**WHOLEHEADS, "num_hidden_layers": 3, "intermediate_size": 20, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 20, "num_experts": 5, "num_experts_per_tok": 2,
                                "mlp_only_layers": [1], "norm_topk_prob": False, "pad_token_id": None, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2,
                                "tie_word_embeddings": False}),
}
ADAPTERS = {
    "qwen2_moe_lora": ("qwen2_moe", False, {**SOME, "target_modules": ["q_proj", "v_proj", "shared_expert_gate"]}),
}
FIELDS = {
    "qwen2_moe": {**TINY_WHOLE, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 12, "num_experts": 4, "num_experts_per_tok": 2},
}
clear = clear_logits
