from .common import SMALL, SOME, TINY, around_zero, small

MODELS = {
    "nemotron": ("nemotron", {**SMALL, "mlp_bias": True, "pad_token_id": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.6}}),
}
ADAPTERS = {
    "nemotron_lora": ("nemotron", False, {**SOME, "target_modules": ["k_proj", "up_proj", "down_proj"]}),
}
PUBLISHED = {
    "nemotron-mini-4b": {
        "architectures": ["NemotronForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 2, "eos_token_id": 3, "head_dim": 128,
        "hidden_act": "relu2", "hidden_size": 3072, "initializer_range": 0.0134, "intermediate_size": 9216, "max_position_embeddings": 4096, "mlp_bias": False,
        "model_type": "nemotron", "norm_eps": 1e-05, "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8, "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.44.0", "use_cache": True, "vocab_size": 256000,
    },
}
SPELLINGS = {
    "nemotron, parts": small("nemotron", head_dim=20, attention_bias=True, mlp_bias=True, norm_eps=1e-4, rope_parameters={
        "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.7}),
}
FIELDS = {
    "nemotron": TINY,
}
GGUF = {
    "nemotron": ("nemotron", dict(mlp_bias=True, norm_eps=1e-4)),
}
initial = around_zero
