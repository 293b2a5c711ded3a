package vision

// samFamily is SAM's: the longest edge gets a fixed size, then the image is padded at the right and at the bottom.
var samFamily = family{
	types:  []string{"SamImageProcessor"},
	models: []string{"sam", "sam_hq"},
	defaults: func() config {
		c := usual(sizes{longest: 1024}, Bilinear, imagenetMean, imagenetStd)
		c.pad, c.padSize, c.square = true, size{1024, 1024}, true
		return c
	}(),
	read: func(c *config, _ *fields) error {
		if c.resize && c.size.longest == 0 {
			return c.size.useless("longest_edge")
		}
		return nil
	},
	plan: func(c *config, from size) (plan, error) {
		p := plan{whole: from}
		if c.resize {
			scale := float64(c.size.longest) / float64(max(from.height, from.width))
			p.resize(size{int(float64(float64(from.height)*scale) + 0.5), int(float64(float64(from.width)*scale) + 0.5)})
		}
		p.finish(c)
		return p, nil
	},
}
