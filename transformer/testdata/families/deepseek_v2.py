from .common import LATENT, TINY_LATENT, YARN, clear_groups

MODELS = {
    "deepseek_v2": ("deepseek_v2", {**LATENT, "q_lora_rank": None, "moe_intermediate_size": 12, "n_routed_experts": 6, "n_group": 3, "topk_group": 2,
                                    "topk_method": "group_limited_greedy", "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_shared_experts": 2, "routed_scaling_factor": 1.5,
                                    "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0}}),
}
FIELDS = {
    "deepseek_v2": {**TINY_LATENT, "moe_intermediate_size": 8, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "topk_method": "group_limited_greedy",
                    "num_experts_per_tok": 2, "first_k_dense_replace": 1},
}
clear = clear_groups
