from .common import LATENT, TINY_LATENT, YARN, clear_groups

MODELS = {
    "deepseek_v2": ("deepseek_v2", {**LATENT, "q_lora_rank": None, "moe_intermediate_size": 12, "n_routed_experts": 6, "n_group": 3, "topk_group": 2,
                                    "topk_method": "group_limited_greedy", "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_shared_experts": 2, "routed_scaling_factor": 1.5,
                                    "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0}}),
}
PUBLISHED = {
    "deepseek-v2-lite": {
        "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "aux_loss_alpha": 0.001, "bos_token_id": 100000,
        "eos_token_id": 100001, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 10944,
        "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v2", "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1,
        "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": False, "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
        "num_key_value_heads": 16, "pretraining_tp": 1, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
        "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096,
                         "type": "yarn"},
        "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": True, "tie_word_embeddings": False, "topk_group": 1,
        "topk_method": "greedy", "torch_dtype": "bfloat16", "transformers_version": "4.33.1", "use_cache": True, "v_head_dim": 128, "vocab_size": 102400,
    },
}
names_only = True
FIELDS = {
    "deepseek_v2": {**TINY_LATENT, "moe_intermediate_size": 8, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "topk_method": "group_limited_greedy",
                    "num_experts_per_tok": 2, "first_k_dense_replace": 1},
}
clear = clear_groups
