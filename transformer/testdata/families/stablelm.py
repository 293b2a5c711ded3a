from .common import NARROW, SOME, TINY, small

MODELS = {
    "stablelm": ("stablelm", {**NARROW, "use_qkv_bias": True, "pad_token_id": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.6}}),
    "stablelm_parallel": ("stablelm", {**NARROW, "num_hidden_layers": 1, "use_parallel_residual": True, "pad_token_id": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.6}}),
}
ADAPTERS = {
    "stablelm_lora": ("stablelm", False, {**SOME, "target_modules": ["q_proj", "gate_proj", "o_proj"]}),
    "stablelm_parallel_lora": ("stablelm_parallel", False, SOME),
}
PUBLISHED = {
    "stablelm-2-1.6b": {
        "architectures": ["StableLmForCausalLM"], "bos_token_id": 100257, "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 5632, "layer_norm_eps": 1e-05, "max_position_embeddings": 4096, "model_type": "stablelm",
        "num_attention_heads": 32, "num_hidden_layers": 24, "num_key_value_heads": 32, "partial_rotary_factor": 0.25, "rope_theta": 10000,
        "tie_word_embeddings": False, "torch_dtype": "float16", "transformers_version": "4.38.0", "use_cache": True, "use_qkv_bias": True, "vocab_size": 100352,
    },
}
SPELLINGS = {
    "stablelm, parallel": small("stablelm", use_parallel_residual=True, partial_rotary_factor=0.5),
    "stablelm, parts": small("stablelm", use_qkv_bias=True, hidden_dropout=0.25, tie_word_embeddings=True, rope_parameters={
        "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}),
}
DEFAULTS = ["stablelm"]
FIELDS = {
    "stablelm": {**TINY, "head_dim": 4},
}
GGUF = {
    "stablelm": ("stablelm", dict(use_qkv_bias=True, layer_norm_eps=1e-4)),
    "stablelm_parallel": ("stablelm", dict(use_parallel_residual=True)),
}
