package vision

import "github.com/snug-ml/snug/layers"

// clipTower is the image encoder of CLIP: Radford et al. 2021, arXiv:2103.00020.
var clipTower = &towerFamily{
	modelType: "clip", tower: "clip_vision_model", nested: "vision_config", older: "vision_config_dict", classifier: "CLIPForImageClassification", towerClass: "CLIPVisionModel", prefix: "vision_model.", biased: true,
	standard: TowerConfig{Image: 224, Patch: 32, Channels: 3, Width: 768, Hidden: 3072, Layers: 12, Heads: 12, Activation: "quick_gelu", Eps: 1e-5, QKVBias: true},
	class:    true, means: []layers.Mean{{From: 1}},
	spellings: []names{{
		class: "embeddings.class_embedding", positions: "embeddings.position_embedding.weight", patch: "embeddings.patch_embedding", before: "pre_layrnorm",
		block: "encoder.layers.%d.", norm1: "layer_norm1", q: "self_attn.q_proj", k: "self_attn.k_proj", v: "self_attn.v_proj", out: "self_attn.out_proj",
		norm2: "layer_norm2", up: "mlp.fc1", down: "mlp.fc2", norm: "post_layernorm",
	}},
}
