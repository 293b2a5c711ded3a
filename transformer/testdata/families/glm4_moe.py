from .common import ALL, SMALL, TINY, clear_groups

MODELS = {
    "glm4_moe": ("glm4_moe", {**SMALL, "head_dim": 12, "intermediate_size": 20, "moe_intermediate_size": 12, "n_routed_experts": 6, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
                              "n_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "use_qk_norm": True, "attention_bias": True, "pad_token_id": None,
                              "tie_word_embeddings": False, "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.5}}),
}
ADAPTERS = {
    "glm4_moe_lora": ("glm4_moe", False, {**ALL, "r": 2, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}),
}
FIELDS = {
    "glm4_moe": {**TINY, "moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "head_dim": 8},
}
clear = clear_groups
