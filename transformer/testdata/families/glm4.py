from .common import SMALL, TINY, small

MODELS = {
    "glm4": ("glm4", {**SMALL, "head_dim": 12, "pad_token_id": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.5}}),
}
ADAPTERS = {
    "glm4_nf4": ("glm4", True, {"target_modules": ["q_proj", "gate_up_proj"], "r": 3, "lora_alpha": 6}),
}
PUBLISHED = {
    "glm-4-9b-0414": {
        "architectures": ["Glm4ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "eos_token_id": [151329, 151336, 151338],
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 13696,
        "max_position_embeddings": 32768, "model_type": "glm4", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2,
        "pad_token_id": 151329, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "transformers_version": "4.52.0.dev0", "use_cache": True, "vocab_size": 151552,
    },
}
SPELLINGS = {
    "glm4, parts": small("glm4", pad_token_id=None, head_dim=20, rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.7}),
    "glm4, yarn": small("glm4", pad_token_id=None, head_dim=16, max_position_embeddings=4096, rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}),
}
FIELDS = {
    "glm4": TINY,
}
GGUF = {
    "glm4": ("glm4", dict(attention_bias=True, pad_token_id=None)),
}
