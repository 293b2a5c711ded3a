from .common import WHOLEHEADS

MAMBA = {"mamba_d_ssm": 30, "mamba_n_heads": 6, "mamba_d_head": "auto", "mamba_n_groups": 2, "mamba_d_state": 5, "mamba_d_conv": 3}
MULTIPLIERS = {"embedding_multiplier": 2.5, "lm_head_multiplier": 0.4, "attention_out_multiplier": 0.9, "key_multiplier": 0.6, "mlp_multipliers": [0.7, 1.4],
               "ssm_multipliers": [0.8, 1.3, 0.7, 1.2, 0.9], "ssm_out_multiplier": 0.7}
SMALL_H1 = {**WHOLEHEADS, "hidden_size": 24, "intermediate_size": 32, **MAMBA, **MULTIPLIERS, "pad_token_id": None}
MODELS = {
    "falcon_h1": ("falcon_h1", {**SMALL_H1, "attention_in_multiplier": 1.2, "ssm_in_multiplier": 1.1}),
    "falcon_h1_norm": ("falcon_h1", {**SMALL_H1, "mamba_rms_norm": True, "mamba_norm_before_gate": True, "attention_bias": True, "mlp_bias": True,
                                     "mamba_proj_bias": True, "projectors_bias": True, "tie_word_embeddings": True, "time_step_limit": [0.05, 1.0]}),
}
ADAPTERS = {
    "falcon_h1_lora": ("falcon_h1", False, {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "in_proj"], "r": 4, "lora_alpha": 8}),
}
