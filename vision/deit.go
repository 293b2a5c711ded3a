package vision

// deitFamily is DeiT's: a square, of which the middle is cut out. Published folders name it by feature_extractor_type, also where the model is a ViT.
var deitFamily = family{
	types:  []string{"DeiTImageProcessor"},
	models: []string{"deit"},
	defaults: func() config {
		c := usual(sizes{height: 256, width: 256}, Bicubic, half, half)
		c.square = true
		c.crop, c.cropSize = true, size{224, 224}
		return c
	}(),
	plan: usualPlan,
}
