from .common import LATENT, TINY_LATENT, clear_groups

MODELS = {
    "glm4_moe_lite": ("glm4_moe_lite", {**LATENT, "moe_intermediate_size": 12, "n_routed_experts": 5, "num_experts_per_tok": 2, "rope_interleave": False,
                                        "mlp_layer_types": ["sparse", "dense"]}),
}
FIELDS = {
    "glm4_moe_lite": {**TINY_LATENT, "moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2},
}
clear = clear_groups
