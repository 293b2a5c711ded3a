from .common import ALL, LATENT, TINY_LATENT, YARN, clear_groups

MODELS = {
    "deepseek_v3": ("deepseek_v3", {**LATENT, "moe_intermediate_size": 12, "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3,
                                    "n_shared_experts": 1, "first_k_dense_replace": 1, "attention_bias": True,
                                    "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}}),
}
ADAPTERS = {
    "deepseek_v3_lora": ("deepseek_v3", False, {**ALL, "r": 1, "target_modules": r".*\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj|o_proj)"}),
}
FIELDS = {
    "deepseek_v3": {**TINY_LATENT, "moe_intermediate_size": 8, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
}
clear = clear_groups
