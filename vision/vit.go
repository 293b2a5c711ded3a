package vision

// vitFamily is ViT's: a square of a fixed size.
var vitFamily = family{
	types: []string{"ViTImageProcessor"},
	models: []string{
		"vit", "clipseg", "dinat", "ijepa", "mgp-str", "swiftformer", "swin", "swinv2", "trocr", "vit_mae", "vit_msn",
	},
	defaults: func() config {
		c := usual(sizes{height: 224, width: 224}, Bilinear, half, half)
		c.square = true
		return c
	}(),
	plan: usualPlan,
}

// bitFamily is BiT's, which DINOv2 uses: as CLIP's.
var bitFamily = family{
	types:    []string{"BitImageProcessor"},
	models:   []string{"bit", "dinov2", "focalnet", "hiera", "pixio"},
	defaults: clipFamily.defaults,
	plan:     usualPlan,
}
