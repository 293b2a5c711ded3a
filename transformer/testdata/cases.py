"""Files config.json: in the form of published folders, as older and newer transformers
write them, and with fields left out."""

LLAMA3 = {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}

# Fields and values of published folders.
MINISTRAL3 = {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0,
              "original_max_position_embeddings": 16384, "rope_theta": 1000000.0, "rope_type": "yarn", "type": "yarn"}
PIXTRAL = {"attention_dropout": 0.0, "head_dim": 64, "hidden_act": "silu", "hidden_size": 1024, "image_size": 1540, "initializer_range": 0.02,
           "intermediate_size": 4096, "model_type": "pixtral", "num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 24, "patch_size": 14}

PUBLISHED = {
    "gpt2": {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
        "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2",
        "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1,
        "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index",
        "summary_use_proj": True, "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": 50257,
    },
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
    "mistral-7b-v0.1": {
        "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "sliding_window": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0",
        "use_cache": True, "vocab_size": 32000,
    },
    "mistral-nemo": {
        "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 14336,
        "max_position_embeddings": 131072, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 131072,
    },
    "qwen2.5-0.5b": {
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
        "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
        "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
        "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": True,
        "use_mrope": False, "use_sliding_window": False, "vocab_size": 151936,
    },
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
        "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
    },
    "mixtral-8x7b": {
        "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral",
        "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "output_router_logits": False, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.36.0.dev0", "use_cache": True, "vocab_size": 32000,
    },
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
        "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
        "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
    },
    "gpt-oss-20b": {
        "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": 200002, "experts_per_token": 4,
        "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096, "initializer_range": 0.02,
        "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072,
        "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
        "num_local_experts": 32, "output_router_logits": False, "pad_token_id": 199999, "rms_norm_eps": 1e-05,
        "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
                                "quant_method": "mxfp4"},
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn",
                         "truncate": False},
        "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": False,
        "transformers_version": "4.55.0.dev0", "use_cache": True, "vocab_size": 201088,
    },
    "seed-oss-36b": {
        "architectures": ["SeedOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.1, "attention_out_bias": False, "bos_token_id": 0,
        "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 27648,
        "max_position_embeddings": 524288, "mlp_bias": False, "model_type": "seed_oss", "num_attention_heads": 80, "num_hidden_layers": 64,
        "num_key_value_heads": 8, "pad_token_id": 1, "residual_dropout": 0.1, "rms_norm_eps": 1e-06, "rope_scaling": {"rope_type": "default"},
        "rope_theta": 10000000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.55.0", "use_cache": True,
        "vocab_size": 155136,
    },
    "smollm3-3b": {
        "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": None, "eos_token_id": 128012,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 11008, "layer_types": ["full_attention"] * 36,
        "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": False, "model_type": "smollm3", "no_rope_layer_interval": 4,
        "no_rope_layers": [1, 1, 1, 0] * 9, "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4, "pad_token_id": 128004,
        "pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None, "torch_dtype": "bfloat16",
        "transformers_version": "4.54.0.dev0", "use_cache": False, "use_sliding_window": False, "vocab_size": 128256,
    },
    "lfm2-1.2b": {
        "architectures": ["Lfm2ForCausalLM"], "block_auto_adjust_ff_dim": True, "block_dim": 2048, "block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0,
        "block_mlp_init_scale": 1.0, "block_multiple_of": 256, "block_norm_eps": 1e-05, "block_out_init_scale": 1.0, "block_use_swiglu": True,
        "block_use_xavier_init": True, "bos_token_id": 1, "conv_L_cache": 3, "conv_bias": False, "conv_dim": 2048, "conv_dim_out": 2048,
        "conv_use_xavier_init": True, "eos_token_id": 7, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 2048, "initializer_range": 0.02,
        "max_position_embeddings": 128000, "model_type": "lfm2", "norm_eps": 1e-05, "num_attention_heads": 32, "num_heads": 32, "num_hidden_layers": 16,
        "num_key_value_heads": 8, "pad_token_id": 0, "rope_theta": 1000000.0, "tie_embedding": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.54.0.dev0", "use_cache": True, "use_pos_enc": True, "vocab_size": 65536,
    },
    "ernie-4.5-0.3b": {
        "architectures": ["Ernie4_5ForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
        "intermediate_size": 3072, "max_position_embeddings": 131072, "model_type": "ernie4_5", "num_attention_heads": 16, "num_hidden_layers": 18,
        "num_key_value_heads": 2, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "use_bias": False, "use_cache": False, "vocab_size": 103424,
    },
    "glm-4-9b-0414": {
        "architectures": ["Glm4ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "eos_token_id": [151329, 151336, 151338],
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 13696,
        "max_position_embeddings": 32768, "model_type": "glm4", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2,
        "pad_token_id": 151329, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "transformers_version": "4.52.0.dev0", "use_cache": True, "vocab_size": 151552,
    },
    "phi-3-mini-4k": {
        "_name_or_path": "Phi-3-mini-4k-instruct", "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 1, "embd_pdrop": 0.0, "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02,
        "intermediate_size": 8192, "max_position_embeddings": 4096, "model_type": "phi3", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "original_max_position_embeddings": 4096, "pad_token_id": 32000, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "rope_theta": 10000.0, "sliding_window": 2047, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "transformers_version": "4.40.2", "use_cache": True, "vocab_size": 32064,
    },
    "phi-4": {
        "_name_or_path": "phi-4", "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 100257,
        "embd_pdrop": 0.0, "eos_token_id": 100265, "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 17920,
        "max_position_embeddings": 16384, "model_type": "phi3", "num_attention_heads": 40, "num_hidden_layers": 40, "num_key_value_heads": 10,
        "original_max_position_embeddings": 16384, "pad_token_id": 100349, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": None,
        "rope_theta": 250000, "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.47.0",
        "use_cache": True, "vocab_size": 100352,
    },
    "phi-4-mini": {  # the factors are not the published ones
        "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 199999, "embd_pdrop": 0.0,
        "eos_token_id": 199999, "full_attn_mod": 1, "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 8192,
        "interpolate_factor": 1, "lm_head_bias": False, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "phi3",
        "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8, "original_max_position_embeddings": 4096,
        "pad_token_id": 199999, "partial_rotary_factor": 0.75, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
        "rope_scaling": {"long_factor": [1 + i / 3 for i in range(48)], "short_factor": [1.0] * 48, "type": "longrope"}, "rope_theta": 10000.0,
        "sliding_window": 262144, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.45.0", "use_cache": True,
        "vocab_size": 200064,
    },
    "ministral-3-3b": {
        "architectures": ["Mistral3ForConditionalGeneration"], "dtype": "bfloat16", "image_token_index": 10, "model_type": "mistral3",
        "multimodal_projector_bias": False, "projector_hidden_act": "gelu", "quantization_config": {
            "activation_scheme": "static", "dequantize": False, "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head"],
            "quant_method": "fp8", "weight_block_size": None}, "spatial_merge_size": 2, "text_config": {
            "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 9216,
            "max_position_embeddings": 262144, "model_type": "ministral3", "num_attention_heads": 32, "num_hidden_layers": 26, "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05, "rope_parameters": MINISTRAL3, "sliding_window": None, "tie_word_embeddings": True, "use_cache": True,
            "vocab_size": 131072}, "tie_word_embeddings": True, "transformers_version": "5.0.0.dev0", "vision_config": PIXTRAL, "vision_feature_layer": -1,
    },
    "ministral-3-14b": {
        "architectures": ["Mistral3ForConditionalGeneration"], "dtype": "bfloat16", "image_token_index": 10, "model_type": "mistral3",
        "multimodal_projector_bias": False, "projector_hidden_act": "gelu", "spatial_merge_size": 2, "text_config": {
            "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 16384,
            "max_position_embeddings": 262144, "model_type": "ministral3", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05, "rope_parameters": {**MINISTRAL3, "rope_theta": 1000000000.0}, "sliding_window": None, "use_cache": True,
            "vocab_size": 131072}, "tie_word_embeddings": False, "transformers_version": "5.0.0.dev0", "vision_config": PIXTRAL, "vision_feature_layer": -1,
    },
    "mistral-small-3.1-24b": {
        "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10, "model_type": "mistral3", "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu", "spatial_merge_size": 2, "text_config": {
            "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 32768,
            "max_position_embeddings": 131072, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05, "rope_theta": 1000000000.0, "sliding_window": None, "use_cache": True, "vocab_size": 131072},
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "vision_config": PIXTRAL, "vision_feature_layer": -1,
    },
    "afm-4.5b": {
        "architectures": ["ArceeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 128,
        "hidden_act": "relu2", "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": 18432, "max_position_embeddings": 65536, "mlp_bias": False,
        "model_type": "arcee", "num_attention_heads": 20, "num_hidden_layers": 36, "num_key_value_heads": 4, "rms_norm_eps": 1e-05, "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 20.0, "mscale": 1.0, "original_max_position_embeddings": 4096, "rope_type": "yarn", "type": "yarn"},
        "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.53.2", "use_cache": True, "vocab_size": 128004,
    },
    "nemotron-mini-4b": {
        "architectures": ["NemotronForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 2, "eos_token_id": 3, "head_dim": 128,
        "hidden_act": "relu2", "hidden_size": 3072, "initializer_range": 0.0134, "intermediate_size": 9216, "max_position_embeddings": 4096, "mlp_bias": False,
        "model_type": "nemotron", "norm_eps": 1e-05, "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8, "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.44.0", "use_cache": True, "vocab_size": 256000,
    },
    "starcoder2-3b": {
        "architectures": ["Starcoder2ForCausalLM"], "attention_dropout": 0.1, "bos_token_id": 0, "embedding_dropout": 0.1, "eos_token_id": 0,
        "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072, "initializer_range": 0.018042, "intermediate_size": 12288, "max_position_embeddings": 16384,
        "mlp_type": "default", "model_type": "starcoder2", "norm_epsilon": 1e-05, "num_attention_heads": 24, "num_hidden_layers": 30, "num_key_value_heads": 2,
        "residual_dropout": 0.1, "rope_theta": 999999.4420358813, "sliding_window": 4096, "torch_dtype": "float32", "transformers_version": "4.37.0.dev0",
        "use_bias": True, "use_cache": True, "vocab_size": 49152,
    },
    "stablelm-2-1.6b": {
        "architectures": ["StableLmForCausalLM"], "bos_token_id": 100257, "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 5632, "layer_norm_eps": 1e-05, "max_position_embeddings": 4096, "model_type": "stablelm",
        "num_attention_heads": 32, "num_hidden_layers": 24, "num_key_value_heads": 32, "partial_rotary_factor": 0.25, "rope_theta": 10000,
        "tie_word_embeddings": False, "torch_dtype": "float16", "transformers_version": "4.38.0", "use_cache": True, "use_qkv_bias": True, "vocab_size": 100352,
    },
    "pythia-1.4b": {
        "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 8192, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 16,
        "num_hidden_layers": 24, "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16",
        "transformers_version": "4.24.0", "use_cache": True, "use_parallel_residual": True, "vocab_size": 50304,
    },
    "granite-3.3-8b": {
        "architectures": ["GraniteForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "attention_multiplier": 0.0078125, "bos_token_id": 0,
        "embedding_multiplier": 12.0, "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 12800,
        "logits_scaling": 16.0, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "granite", "num_attention_heads": 32,
        "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 0, "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": None,
        "rope_theta": 10000000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.49.0", "use_cache": True,
        "vocab_size": 49159,
    },
    "olmo-2-7b": {
        "architectures": ["Olmo2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "eos_token_id": 100257, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "olmo2",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 100277, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 500000, "tie_word_embeddings": False, "torch_dtype": "float32", "transformers_version": "4.47.0.dev0", "use_cache": True,
        "vocab_size": 100352,
    },
    "gemma-2b": {
        "architectures": ["GemmaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 2, "eos_token_id": 1,
        "head_dim": 256, "hidden_act": "gelu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 16384,
        "max_position_embeddings": 8192, "model_type": "gemma", "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1,
        "pad_token_id": 0, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000.0, "torch_dtype": "bfloat16",
        "transformers_version": "4.38.0.dev0", "use_cache": True, "vocab_size": 256000,
    },
    "gemma-2-2b": {
        "architectures": ["Gemma2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "attn_logit_softcapping": 50.0,
        "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02,
        "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8,
        "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0, "sliding_window": 4096, "torch_dtype": "float32", "transformers_version": "4.42.4", "use_cache": True,
        "vocab_size": 256000,
    },
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

SMALL = {"vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2}


def small(family, **fields):
    return {"model_type": family, **SMALL, **fields}


# Spellings and values that the published files above do not have.
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
    "mistral, window": small("mistral", sliding_window=3, rope_parameters={"rope_theta": 1e6, "rope_type": "default"}),
    "qwen2, windows": small("qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=3),
    "qwen2, types": small("qwen2", use_sliding_window=True, sliding_window=9,
                          layer_types=["full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]),
    "qwen2, yarn": small("qwen2", rope_theta=1e6, rope_scaling={"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}),
    "qwen3, bias": small("qwen3", attention_bias=True, head_dim=16, tie_word_embeddings=True),
    "qwen3, yarn, new": small("qwen3", head_dim=16, max_position_embeddings=131072, rope_parameters={
        "rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "attention_factor": 1.25}),
    "smollm3, intervals": small("smollm3", pad_token_id=None, no_rope_layer_interval=3, use_sliding_window=True, sliding_window=9),
    "smollm3, types": small("smollm3", pad_token_id=None, no_rope_layers=[0, 1, 1, 1, 0, 1], use_sliding_window=True, sliding_window=9,
                            layer_types=["full_attention", "sliding_attention", "full_attention", "full_attention", "sliding_attention"]),
    "ernie4_5, biases": small("ernie4_5", use_bias=True, head_dim=None, tie_word_embeddings=False),
    "lfm2, multiples": small("lfm2", pad_token_id=None, block_multiple_of=7, block_ffn_dim_multiplier=1.3, full_attn_idxs=[1, 4], conv_bias=True, conv_L_cache=5),
    "lfm2, multiplier": small("lfm2", pad_token_id=None, block_ffn_dim_multiplier=2, tie_embedding=False),
    "lfm2, types": small("lfm2", pad_token_id=None, block_auto_adjust_ff_dim=False, block_ff_dim=56, layer_types=["conv", "full_attention"] * 2 + ["conv"]),
    "glm4, parts": small("glm4", pad_token_id=None, head_dim=20, rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.7}),
    "glm4, yarn": small("glm4", pad_token_id=None, head_dim=16, max_position_embeddings=4096, rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}),
    "phi3, su": small("phi3", pad_token_id=None, max_position_embeddings=64, original_max_position_embeddings=32, rope_scaling={
        "type": "su", "short_factor": [1.0] * 6, "long_factor": [2.5] * 6, "original_max_position_embeddings": 32}),
    "phi3, attention factor": small("phi3", pad_token_id=None, max_position_embeddings=64, original_max_position_embeddings=32, sliding_window=5, partial_rotary_factor=0.5,
                                    rope_scaling={"type": "longrope", "short_factor": [1.0] * 3, "long_factor": [2.5, 3, 4], "attention_factor": 1.3}),
    "seed_oss, biases": small("seed_oss", attention_bias=False, attention_out_bias=True, mlp_bias=True, head_dim=16, residual_dropout=0.0),
    "granite, factors": small("granite", attention_bias=True, mlp_bias=True, embedding_multiplier=12, attention_multiplier=0.0625, residual_multiplier=0.22,
                              logits_scaling=6.0, rope_theta=1e6),
    "olmo2, bias": small("olmo2", pad_token_id=None, attention_bias=True, rope_theta=5e5, num_key_value_heads=None, rope_scaling={
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}),
    "ministral3, old": small("ministral3", pad_token_id=None, head_dim=16, rope_theta=5e5, sliding_window=9, rope_scaling={
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "llama_4_scaling_beta": 0.25, "mscale": 1.0, "mscale_all_dim": 0.5}),
    "ministral3, default rope": small("ministral3", pad_token_id=None, head_dim=16, rope_parameters={
        "rope_type": "default", "rope_theta": 500.0, "original_max_position_embeddings": 128, "llama_4_scaling_beta": 0.5}),
    "ministral3, no scale": small("ministral3", pad_token_id=None, tie_word_embeddings=True, rope_parameters={
        "rope_type": "default", "rope_theta": 500.0, "original_max_position_embeddings": 128, "llama_4_scaling_beta": 0.0}),
    "ministral, types": small("ministral", head_dim=16, sliding_window=7, layer_types=["full_attention"] * 2 + ["sliding_attention"] * 3),
    "ministral, window": small("ministral", head_dim=12, sliding_window=3),
    "ministral, no window": small("ministral", head_dim=12, sliding_window=None, rope_theta=1e6),
    "arcee, biases": small("arcee", head_dim=10, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "nemotron, parts": small("nemotron", head_dim=20, attention_bias=True, mlp_bias=True, norm_eps=1e-4, rope_parameters={
        "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.7}),
    "starcoder2, window": small("starcoder2", sliding_window=7, embedding_dropout=0.25, residual_dropout=0.125, norm_epsilon=1e-4, tie_word_embeddings=False),
    "stablelm, parallel": small("stablelm", use_parallel_residual=True, partial_rotary_factor=0.5),
    "gpt_neox, follow": small("gpt_neox", use_parallel_residual=False, attention_bias=False, rotary_pct=0.5, rotary_emb_base=500, hidden_dropout=0.25, tie_word_embeddings=True),
    "gpt_neox, linear": small("gpt_neox", rotary_pct=0.5, rope_scaling={"type": "linear", "factor": 2.5}, hidden_act="gelu_new"),
    "stablelm, parts": small("stablelm", use_qkv_bias=True, hidden_dropout=0.25, tie_word_embeddings=True, rope_parameters={
        "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}),
    "gemma, bias": small("gemma", head_dim=16, attention_bias=True, hidden_act="silu", tie_word_embeddings=False),
    "gemma2, scalar": small("gemma2", query_pre_attn_scalar=144, final_logit_softcapping=None, head_dim=16, attention_bias=True,
                            sliding_window=5, tie_word_embeddings=False),
    "gemma3, pattern": small("gemma3_text", sliding_window_pattern=2, head_dim=16, sliding_window=6, final_logit_softcapping=20.0),
    "gemma3, linear": small("gemma3_text", head_dim=16, rope_scaling={"rope_type": "linear", "factor": 8.0}, rope_theta=2e6, rope_local_base_freq=9e3),
    "gemma3, both ropes": small("gemma3_text", head_dim=16, rope_parameters={
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
    "mixtral, window": small("mixtral", num_local_experts=3, sliding_window=6, output_router_logits=True, router_aux_loss_coef=0.25,
                             head_dim=16, rope_scaling={"type": "linear", "factor": 2.5}),
    "qwen3_moe, dense": small("qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, decoder_sparse_step=2, mlp_only_layers=[3],
                              attention_bias=True, use_sliding_window=True, sliding_window=5, max_window_layers=2, tie_word_embeddings=True),
    "gpt_oss, types": small("gpt_oss", num_local_experts=4, num_experts_per_tok=3, attention_bias=False, swiglu_limit=3.5, swiglu_alpha=1.25,
                            sliding_window=9, output_router_logits=True, layer_types=["full_attention"] * 2 + ["sliding_attention"] * 3),
    "gpt_oss, default rope": small("gpt_oss", num_local_experts=4, head_dim=8, rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
    "gpt2, inner": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 20, "n_inner": 50, "vocab_size": 30,
                    "activation_function": "gelu", "resid_pdrop": 0.0, "embd_pdrop": 0.2, "attn_pdrop": 0.3, "scale_attn_weights": False,
                    "tie_word_embeddings": False},
    "gpt2, other names": {"model_type": "gpt2", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                          "max_position_embeddings": 20, "vocab_size": 30},
}

# Without the ones whose defaults transformers cannot build: ministral wants a head_dim, nemotron a num_key_value_heads.
FAMILIES = ["llama", "mistral", "ministral3", "granite", "olmo2", "qwen2", "qwen3", "seed_oss", "gemma", "gemma2", "gemma3_text", "mixtral", "qwen3_moe", "gpt_oss", "gpt2", "arcee", "starcoder2", "stablelm", "gpt_neox"]

CASES = {**PUBLISHED, **SPELLINGS, **{f"{name}, defaults": {"model_type": name} for name in FAMILIES}}
