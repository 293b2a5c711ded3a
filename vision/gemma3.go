package vision

import (
	"fmt"
	"strings"

	"github.com/snug-ml/snug"
)

// gemma3Family is Gemma 3's: a square of a fixed size, 896 in the published models. Pan and scan, which is off in them, is refused.
var gemma3Family = family{
	types:  []string{"Gemma3ImageProcessor"},
	models: []string{"gemma3", "shieldgemma2", "t5gemma2"},
	defaults: func() config {
		c := usual(sizes{height: 224, width: 224}, Bilinear, half, half)
		c.square = true
		return c
	}(),
	read: func(_ *config, f *fields) error {
		if f.PanAndScan != nil && *f.PanAndScan {
			return fmt.Errorf("do_pan_and_scan is true, want false or null: %w", snug.ErrConfig)
		}
		return nil
	},
	plan: func(c *config, from size) (plan, error) {
		only := *c
		only.crop, only.pad = false, false // which its _preprocess passes over
		return usualPlan(&only, from)
	},
}

// gemma3Prompt puts the soft tokens between <start_of_image>, which is the placeholder, and <end_of_image>, with empty lines around.
var gemma3Prompt = prompt{
	classes:  []string{"Gemma3Processor"},
	models:   []string{"gemma3"},
	defaults: texts{image: "<image_soft_token>", begin: "<start_of_image>", end: "<end_of_image>", length: 256},
	mark:     func(t *texts) string { return t.begin },
	tokens:   fixedLength,
	text: func(t *texts, l Layout) string {
		return "\n\n" + t.begin + strings.Repeat(t.image, l.Tokens) + t.end + "\n\n"
	},
}
