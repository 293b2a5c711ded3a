package vision

import "github.com/snug-ml/snug/layers"

// siglipTower is the image encoder of SigLIP: Zhai et al. 2023, arXiv:2303.15343.
var siglipTower = &towerFamily{
	modelType: "siglip", tower: "siglip_vision_model", nested: "vision_config", classifier: "SiglipForImageClassification", towerClass: "SiglipVisionModel", prefix: "vision_model.", biased: true,
	standard:  TowerConfig{Image: 224, Patch: 16, Channels: 3, Width: 768, Hidden: 3072, Layers: 12, Heads: 12, Activation: "gelu_pytorch_tanh", Eps: 1e-6, QKVBias: true},
	patchBias: true, norms: true, means: []layers.Mean{{}}, fresh: map[string]any{"vision_use_head": false}, // which pools with attention
	spellings: []names{{
		positions: "embeddings.position_embedding.weight", patch: "embeddings.patch_embedding",
		block: "encoder.layers.%d.", norm1: "layer_norm1", q: "self_attn.q_proj", k: "self_attn.k_proj", v: "self_attn.v_proj", out: "self_attn.out_proj",
		norm2: "layer_norm2", up: "mlp.fc1", down: "mlp.fc2", norm: "post_layernorm",
	}},
}
