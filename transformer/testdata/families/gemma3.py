from .common import ALL, ONE, SMALL, TINY, around_zero, small
from .gemma import GGUF_GEMMA

MODELS = {
    "gemma3": ("gemma3_text", {**SMALL, "sliding_window": 5, "query_pre_attn_scalar": 12, "pad_token_id": None, "tie_word_embeddings": True,
                               "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {
                                   "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
                                   "sliding_attention": {"rope_type": "default", "rope_theta": 1e3}}}),
    "gemma3_images": ("gemma3", {
        "mm_tokens_per_image": 4, "image_token_index": 46, "boi_token_index": 45, "eoi_token_index": 44, "pad_token_id": None, "tie_word_embeddings": True,
        "vision_config": {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14},
        "text_config": {**ONE, "sliding_window": 5, "query_pre_attn_scalar": 12, "pad_token_id": None, "layer_types": ["sliding_attention"]}}),
}
ADAPTERS = {
    "gemma3_nf4": ("gemma3", True, ALL),
    "gemma3_images": ("gemma3_images", False, {"target_modules": ["q_proj", "k_proj", "gate_proj", "down_proj"], "r": 3, "lora_alpha": 6,
                                               "rank_pattern": {r"language_model\.layers\.1\..*q_proj": 2}}),
    "gemma3_dora": ("gemma3", False, {"target_modules": ["o_proj", "k_proj", "down_proj"], "r": 3, "lora_alpha": 6, "use_dora": True}),
}
PUBLISHED = {
    "gemma-3-1b": {
        "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "attn_logit_softcapping": None,
        "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 106], "final_logit_softcapping": None, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "initializer_range": 0.02, "intermediate_size": 6912,
        "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26,
        "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512,
        "sliding_window_pattern": 6, "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "use_cache": True,
        "vocab_size": 262144,
    },
    "gemma-3-4b": {
        "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000,
        "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
        "model_type": "gemma3", "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
        }, "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "vision_config": {
            "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
            "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False,
        },
    },
}
SPELLINGS = {
    "gemma3, pattern": small("gemma3_text", sliding_window_pattern=2, head_dim=16, sliding_window=6, final_logit_softcapping=20.0),
    "gemma3, linear": small("gemma3_text", head_dim=16, rope_scaling={"rope_type": "linear", "factor": 8.0}, rope_theta=2e6, rope_local_base_freq=9e3),
    "gemma3, both ropes": small("gemma3_text", head_dim=16, rope_parameters={
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
}
DEFAULTS = ["gemma3_text"]
FIELDS = {
    "gemma3_text": TINY,
}
GGUF = {
    "gemma3": ("gemma3_text", dict(GGUF_GEMMA, query_pre_attn_scalar=16, sliding_window=8, num_hidden_layers=7, rope_parameters={
     "full_attention": dict(rope_type="linear", factor=8.0, rope_theta=1000000.0), "sliding_attention": dict(rope_type="default", rope_theta=10000.0)})),
}
initial = around_zero
WHOLE = "Gemma3ForConditionalGeneration"
