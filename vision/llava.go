package vision

// llavaFamily is CLIP's with do_pad: the image is padded to a square with the mean colour before it is resized. The published LLaVA
// 1.5 has CLIP's.
var llavaFamily = family{
	types:    []string{"LlavaImageProcessor"},
	models:   []string{"llava"},
	defaults: clipFamily.defaults,
	read: func(c *config, _ *fields) error {
		for i, m := range c.mean {
			c.background[i] = byte(min(max(int(m*255), 0), 255))
		}
		return nil
	},
	plan: func(c *config, from size) (plan, error) {
		if c.pad {
			from = size{max(from.height, from.width), max(from.height, from.width)}
		}
		before := *c
		before.pad = false
		p, err := usualPlan(&before, from)
		p.square, p.background = c.pad, c.background
		return p, err
	},
}

// llavaPrompt repeats <image> for the patches of the tower, without the class token where the model leaves it out.
var llavaPrompt = prompt{
	classes:  []string{"LlavaProcessor"},
	models:   []string{"llava", "vipllava"},
	defaults: texts{image: "<image>"},
	read: func(t *texts, _ *config) error {
		if t.patch == 0 {
			return needs("processor_config.json", "patch_size")
		}
		return nil
	},
	mark: imageToken,
	tokens: func(t *texts, l Layout, _ size) int {
		if len(l.Shape) != 4 {
			return 0
		}
		return max(l.Shape[2]/t.patch*(l.Shape[3]/t.patch)+t.extra-t.drop, 0)
	},
	text: repeated,
}
