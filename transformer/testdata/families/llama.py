from .common import ALL, LLAMA3, ONE, SMALL, TINY, small

MODELS = {
    "llama": ("llama", {**SMALL, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    "llama_linear": ("llama", {**ONE, "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4}}),
    "llama_dynamic": ("llama", {**ONE, "max_position_embeddings": 8, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}),
    "llama_llama3": ("llama", {**ONE, "rope_parameters": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 1e3}}),
    "llama_yarn": ("llama", {**ONE, "rope_parameters": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8, "rope_theta": 1e3}}),
}
ADAPTERS = {
    "llama_lora": ("llama", False, ALL),
    "llama_rslora": ("llama", False, {"target_modules": ["q_proj", "v_proj", "mlp.down_proj"], "r": 3, "lora_alpha": 6, "use_rslora": True,
                                      "rank_pattern": {"v_proj": 5, r"layers\.1\..*down_proj": 2}, "alpha_pattern": {"q_proj": 2}}),
    "llama_nf4": ("llama", True, ALL),
    "llama_dora": ("llama", False, {**ALL, "use_dora": True}),
    "llama_dora_nf4": ("llama", True, {**ALL, "use_dora": True, "use_rslora": True}),
    "llama_saved": ("llama", False, {**ALL, "modules_to_save": ["embed_tokens", "lm_head", "norm"]}),
    "llama_vera": ("llama", False, {"vera": True, "target_modules": "all-linear", "r": 6, "projection_prng_key": 7}),
}
PUBLISHED = {
    "llama-2-7b": {
        "_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008,
        "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None, "tie_word_embeddings": False,
        "torch_dtype": "float16", "transformers_version": "4.31.0.dev0", "use_cache": True, "vocab_size": 32000,
    },
    "llama-3.2-1b": {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": LLAMA3, "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0.dev0", "use_cache": True, "vocab_size": 128256,
    },
    "smollm2-135m": {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 0,
        "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664, "intermediate_size": 1536,
        "is_llama_config": True, "max_position_embeddings": 8192, "model_type": "llama", "num_attention_heads": 9,
        "num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": False,
        "rope_scaling": None, "rope_theta": 100000, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.40.1", "use_cache": True, "vocab_size": 49152,
        "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}},
    },
}
SPELLINGS = {
    "llama, biases": small("llama", attention_bias=True, mlp_bias=True, head_dim=10, attention_dropout=0.25, dtype="float16"),
    "llama, no key heads": small("llama", num_key_value_heads=None, bos_token_id=None, eos_token_id=None, pad_token_id=7),
    "llama, linear, old": small("llama", rope_theta=5000.0, rope_scaling={"type": "linear", "factor": 2.5}),
    "llama, dynamic": small("llama", max_position_embeddings=64, rope_scaling={"type": "dynamic", "factor": 4.0}),
    "llama, llama3, new": small("llama", rope_parameters={"rope_theta": 500000.0, **LLAMA3}),
    "llama, yarn": small("llama", max_position_embeddings=4096, rope_scaling={
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 1.0,
        "mscale_all_dim": 0.5, "truncate": False}),
    "llama, default with fields": small("llama", rope_parameters={"rope_type": "default", "rope_theta": 7.5, "factor": 3.0}),
    "llama, gelu": small("llama", hidden_act="gelu"),
}
DEFAULTS = ["llama"]
FIELDS = {
    "llama": TINY,
}
GGUF = {
    "llama": ("llama", dict(attention_bias=True, mlp_bias=True)),
    "llama_tied": ("llama", dict(tie_word_embeddings=True, rms_norm_eps=1e-5)),
    "llama_linear": ("llama", dict(rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.0))),
    "llama_llama3": ("llama", dict(rope_parameters=dict(rope_type="llama3", rope_theta=50000.0, factor=8.0, low_freq_factor=1.0,
                                                        high_freq_factor=4.0, original_max_position_embeddings=64))),
    "llama_yarn": ("llama", dict(rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32))),
}
