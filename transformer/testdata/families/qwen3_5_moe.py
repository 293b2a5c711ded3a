from .common import TINY, clear_logits
from .qwen3_5 import HYBRID, initial, published  # noqa: F401
from .qwen3_next import MIXTURE

TEXT = {key: value for key, value in {**HYBRID, **MIXTURE}.items() if key != "intermediate_size"}
MODELS = {
    "qwen3_5_moe": ("qwen3_5_moe_text", {**TEXT, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "rms_norm_eps": 1e-2, "tie_word_embeddings": False}),
    "qwen3_5_moe_images": ("qwen3_5_moe", {
        "image_token_id": 46, "video_token_id": 45, "vision_start_token_id": 44, "vision_end_token_id": 43, "tie_word_embeddings": True,
        "vision_config": {"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4, "num_position_embeddings": 16},
        "text_config": {**TEXT, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "num_experts": 4, "tie_word_embeddings": True}}),
}
ADAPTERS = {
    "qwen3_5_moe_lora": ("qwen3_5_moe", False, {"r": 2, "lora_alpha": 4, "target_modules": [
        "q_proj", "k_proj", "v_proj", "o_proj", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj", "gate_proj", "up_proj", "down_proj", "shared_expert_gate"]}),
}
PUBLISHED = {
    "qwen3.5-35b-a3b": published(40, "qwen3_5_moe", tied=False, hidden_size=2048, moe_intermediate_size=512, shared_expert_intermediate_size=512, num_experts=256,
                                 num_experts_per_tok=8, num_attention_heads=16, num_key_value_heads=2, linear_num_value_heads=32, output_router_logits=False,
                                 router_aux_loss_coef=0.001),
}
DEFAULTS = ["qwen3_5_moe_text"]
FIELDS = {
    "qwen3_5_moe_text": {**{key: value for key, value in TINY.items() if key != "intermediate_size"}, "head_dim": 8, "linear_key_head_dim": 4, "linear_value_head_dim": 4,
                         "linear_num_key_heads": 2, "linear_num_value_heads": 4, "full_attention_interval": 2, "num_experts": 4, "num_experts_per_tok": 2,
                         "moe_intermediate_size": 8, "shared_expert_intermediate_size": 6},
}
WHOLE = "Qwen3_5MoeForConditionalGeneration"
clear = clear_logits

names_only = True
