from .common import TINY, clear_logits
from .qwen3_5 import HYBRID, initial  # noqa: F401

MIXTURE = {"moe_intermediate_size": 12, "shared_expert_intermediate_size": 10, "num_experts": 5, "num_experts_per_tok": 2}
MODELS = {
    "qwen3_next": ("qwen3_next", {**HYBRID, **MIXTURE, "rms_norm_eps": 1e-2, "mlp_only_layers": [2], "norm_topk_prob": True, "tie_word_embeddings": False}),
}
PUBLISHED = {
    "qwen3-next-80b-a3b": {
        "architectures": ["Qwen3NextForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645,
        "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5120,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
        "max_position_embeddings": 262144, "mlp_only_layers": [], "model_type": "qwen3_next", "moe_intermediate_size": 512, "norm_topk_prob": True,
        "num_attention_heads": 16, "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2,
        "output_router_logits": False, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000000,
        "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 512, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "transformers_version": "4.57.0.dev0", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
    },
}
FIELDS = {
    "qwen3_next": {**TINY, "head_dim": 8, "linear_key_head_dim": 4, "linear_value_head_dim": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                   "full_attention_interval": 2, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 6},
}
clear = clear_logits

names_only = True
