from .common import SMALL, SOME, TINY, small

MODELS = {
    "arcee": ("arcee", {**SMALL, "attention_bias": True, "mlp_bias": False, "tie_word_embeddings": False}),
}
ADAPTERS = {
    "arcee_lora": ("arcee", False, SOME),
}
PUBLISHED = {
    "afm-4.5b": {
        "architectures": ["ArceeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 128,
        "hidden_act": "relu2", "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": 18432, "max_position_embeddings": 65536, "mlp_bias": False,
        "model_type": "arcee", "num_attention_heads": 20, "num_hidden_layers": 36, "num_key_value_heads": 4, "rms_norm_eps": 1e-05, "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 20.0, "mscale": 1.0, "original_max_position_embeddings": 4096, "rope_type": "yarn", "type": "yarn"},
        "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.53.2", "use_cache": True, "vocab_size": 128004,
    },
}
SPELLINGS = {
    "arcee, biases": small("arcee", head_dim=10, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
}
DEFAULTS = ["arcee"]
FIELDS = {
    "arcee": TINY,
}
GGUF = {
    "arcee": ("arcee", {}),
}
