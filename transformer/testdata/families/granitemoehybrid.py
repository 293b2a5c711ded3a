from .common import ALL, SPELLED, TINY_WHOLE, WHOLEHEADS, small
import torch

MAMBA = {"mamba_n_heads": 6, "mamba_n_groups": 2, "mamba_d_state": 5, "mamba_d_conv": 3, "mamba_expand": 2, "mamba_d_head": "auto"}
HYBRID = {**WHOLEHEADS, "hidden_size": 24, "intermediate_size": 40, "shared_intermediate_size": 28, "num_hidden_layers": 3, "num_local_experts": 0,
          "layer_types": ["mamba", "attention", "mamba"], **MAMBA, "embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.3,
          "logits_scaling": 6.0, "pad_token_id": None}
MODELS = {
    "granitemoehybrid": ("granitemoehybrid", {**HYBRID, "mamba_proj_bias": True, "attention_bias": True, "time_step_limit": [0.05, 1.0]}),
    "granitemoehybrid_rope": ("granitemoehybrid", {**HYBRID, "mamba_n_groups": 1, "mamba_conv_bias": False, "position_embedding_type": "rope", "tie_word_embeddings": True}),
}
ADAPTERS = {
    "granitemoehybrid_lora": ("granitemoehybrid", False, ALL),
}
