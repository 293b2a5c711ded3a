from .common import ALL, SMALL, TINY, around_zero, small

DELTA = {"linear_conv_kernel_dim": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
HYBRID = {**SMALL, **DELTA, "num_hidden_layers": 3, "head_dim": 16, "pad_token_id": None, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
          "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.25}}

MODELS = {
    "qwen3_5": ("qwen3_5_text", {**HYBRID, "tie_word_embeddings": False}),
    "qwen3_5_interval": ("qwen3_5_text", {**HYBRID, "num_hidden_layers": 2, "layer_types": None, "full_attention_interval": 2, "attention_bias": True, "tie_word_embeddings": False}),
    "qwen3_5_images": ("qwen3_5", {
        "image_token_id": 46, "video_token_id": 45, "vision_start_token_id": 44, "vision_end_token_id": 43, "tie_word_embeddings": True,
        "vision_config": {"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4, "num_position_embeddings": 16},
        "text_config": {**HYBRID, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "tie_word_embeddings": True}}),
}
ADAPTERS = {
    "qwen3_5_lora": ("qwen3_5_interval", False, ALL),
}


def published(layers, whole="qwen3_5", tied=True, **text):
    """The fields of a folder of Qwen/Qwen3.5."""
    name = "Qwen3_5Moe" if "moe" in whole else "Qwen3_5"
    return {
        "architectures": [name + "ForConditionalGeneration"], "dtype": "bfloat16", "image_token_id": 248056, "model_type": whole, "text_config": {
            "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True, "dtype": "bfloat16", "eos_token_id": 248044, "full_attention_interval": 4,
            "head_dim": 256, "hidden_act": "silu", "initializer_range": 0.02, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * (layers // 4),
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32",
            "max_position_embeddings": 262144, "model_type": whole + "_text", "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
            "num_hidden_layers": layers, "rms_norm_eps": 1e-06, "use_cache": True, "vocab_size": 248320, "rope_parameters": {
                "mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"},
            "tie_word_embeddings": tied, **text},
        "tie_word_embeddings": tied, "transformers_version": "4.57.0.dev0", "video_token_id": 248057, "vision_config": {
            "deepstack_visual_indexes": [], "depth": 27, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1152, "in_channels": 3, "initializer_range": 0.02,
            "intermediate_size": 4304, "model_type": whole, "num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": text["hidden_size"],
            "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2}, "vision_end_token_id": 248054, "vision_start_token_id": 248053,
    }


PUBLISHED = {
    "qwen3.5-0.8b": published(24, hidden_size=1024, intermediate_size=3584, num_attention_heads=8, num_key_value_heads=2, linear_num_value_heads=16),
    "qwen3.5-2b": published(24, hidden_size=2048, intermediate_size=6144, num_attention_heads=8, num_key_value_heads=2, linear_num_value_heads=16),
    "qwen3.5-4b": published(32, hidden_size=2560, intermediate_size=9216, num_attention_heads=16, num_key_value_heads=4, linear_num_value_heads=32),
    "qwen3.5-9b": published(32, tied=False, hidden_size=4096, intermediate_size=12288, num_attention_heads=16, num_key_value_heads=4, linear_num_value_heads=32),
    "qwen3.5-27b": published(64, tied=False, hidden_size=5120, intermediate_size=17408, num_attention_heads=24, num_key_value_heads=4, linear_num_value_heads=48),
}
SPELLINGS = {
    "qwen3_5, interval": small("qwen3_5_text", head_dim=16, full_attention_interval=3, attention_bias=True, linear_num_value_heads=8, linear_num_key_heads=4,
                               linear_key_head_dim=10, linear_value_head_dim=12, linear_conv_kernel_dim=3, tie_word_embeddings=True),
    "qwen3_5, share": small("qwen3_5_text", head_dim=16, partial_rotary_factor=0.5, rope_theta=1e5),
    "qwen3_5, linear": small("qwen3_5_text", head_dim=16, rope_scaling={"rope_type": "linear", "factor": 4.0, "mrope_section": [1, 1, 0], "mrope_interleaved": True}),
    "qwen3_5, no delta": small("qwen3_5_text", head_dim=16, layer_types=["full_attention"] * 5),
}
DEFAULTS = ["qwen3_5_text"]
FIELDS = {
    "qwen3_5_text": {**TINY, "head_dim": 8, "linear_key_head_dim": 4, "linear_value_head_dim": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                     "full_attention_interval": 2},
}
WHOLE = "Qwen3_5ForConditionalGeneration"


def initial(key, p):
    if key.endswith(("conv1d.weight", "in_proj_qkv.weight")):  # a norm of keys that are near 0 makes what trains chaotic
        p.normal_(0, 0.8 if p.dim() == 3 else 0.3)
        return True
    return "linear_attn.norm" not in key and around_zero(key, p)


def name_as_llama(config, body):
    attention = next((layer.self_attn for layer in body.layers if hasattr(layer, "self_attn")), None)
    for layer in body.layers:
        object.__setattr__(layer, "self_attn", attention)  # which registers nothing


def extra(config, body):
    delta = [kind == "linear_attention" for kind in config.layer_types]
    return {"Mixers": ["delta_net" if d else "" for d in delta] if any(delta) else None, "OutputGate": True, "NormPlusOne": True,
            "Delta": {"KeyHeads": config.linear_num_key_heads, "Heads": config.linear_num_value_heads, "KeyDim": config.linear_key_head_dim,
                      "Dim": config.linear_value_head_dim, "Taps": config.linear_conv_kernel_dim}}
