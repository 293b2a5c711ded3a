package vision

// clipFamily is CLIP's: resize the shortest edge, cut out the middle. LLaVA 1.5 and many others use it.
var clipFamily = family{
	types:  []string{"CLIPImageProcessor"},
	models: []string{"clip", "aimv2", "aimv2_vision_model", "altclip", "florence2", "metaclip_2", "vipllava"},
	defaults: func() config {
		c := usual(sizes{shortest: 224}, Bicubic, clipMean, clipStd)
		c.crop, c.cropSize = true, size{224, 224}
		return c
	}(),
	read: func(c *config, f *fields) error {
		if f.SquareSize != nil && *f.SquareSize { // of KOSMOS-2: the size of the class, as a square
			c.size = sizes{height: 224, width: 224}
		}
		return nil
	},
	plan: usualPlan,
}
