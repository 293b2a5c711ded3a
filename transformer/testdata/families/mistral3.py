from .common import ONE
from .ministral3 import MINISTRAL3, PUBLISHED_YARN

PIXTRAL = {"attention_dropout": 0.0, "head_dim": 64, "hidden_act": "silu", "hidden_size": 1024, "image_size": 1540, "initializer_range": 0.02,
           "intermediate_size": 4096, "model_type": "pixtral", "num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 24, "patch_size": 14}

MODELS = {
    "mistral3_images": ("mistral3", {
        "image_token_index": 46, "tie_word_embeddings": False, "spatial_merge_size": 2,
        "vision_config": {"model_type": "pixtral", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 4,
                          "image_size": 28, "patch_size": 14},
        "text_config": {**ONE, "model_type": "ministral3", "pad_token_id": None, "tie_word_embeddings": False, "sliding_window": 6, "rope_parameters": MINISTRAL3}}),
}
PUBLISHED = {
    "ministral-3-3b": {
        "architectures": ["Mistral3ForConditionalGeneration"], "dtype": "bfloat16", "image_token_index": 10, "model_type": "mistral3",
        "multimodal_projector_bias": False, "projector_hidden_act": "gelu", "quantization_config": {
            "activation_scheme": "static", "dequantize": False, "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head"],
            "quant_method": "fp8", "weight_block_size": None}, "spatial_merge_size": 2, "text_config": {
            "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 9216,
            "max_position_embeddings": 262144, "model_type": "ministral3", "num_attention_heads": 32, "num_hidden_layers": 26, "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05, "rope_parameters": PUBLISHED_YARN, "sliding_window": None, "tie_word_embeddings": True, "use_cache": True,
            "vocab_size": 131072}, "tie_word_embeddings": True, "transformers_version": "5.0.0.dev0", "vision_config": PIXTRAL, "vision_feature_layer": -1,
    },
    "ministral-3-14b": {
        "architectures": ["Mistral3ForConditionalGeneration"], "dtype": "bfloat16", "image_token_index": 10, "model_type": "mistral3",
        "multimodal_projector_bias": False, "projector_hidden_act": "gelu", "spatial_merge_size": 2, "text_config": {
            "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 16384,
            "max_position_embeddings": 262144, "model_type": "ministral3", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05, "rope_parameters": {**PUBLISHED_YARN, "rope_theta": 1000000000.0}, "sliding_window": None, "use_cache": True,
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
}
WHOLE = "Mistral3ForConditionalGeneration"
