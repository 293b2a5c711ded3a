package vision

import "strings"

// siglipFamily is SigLIP's: a square of a fixed size. PaliGemma uses it.
var siglipFamily = family{
	types:    []string{"SiglipImageProcessor"},
	models:   []string{"siglip", "paligemma", "colpali", "gemma3n"},
	defaults: usual(sizes{height: 224, width: 224}, Bicubic, half, half),
	plan:     usualPlan,
}

// paligemmaPrompt is PaliGemma's: image tokens, <bos>, the text, a line feed. A text without placeholders gets them at its beginning.
var paligemmaPrompt = prompt{
	classes:  []string{"PaliGemmaProcessor"},
	models:   []string{"paligemma"},
	defaults: texts{image: "<image>", bos: "<bos>"},
	read: func(t *texts, c *config) error {
		if c.seqLength == 0 || c.seqLength > mostTokens {
			return needs("preprocessor_config.json", "image_seq_length")
		}
		t.length = c.seqLength
		return nil
	},
	mark:   imageToken,
	tokens: fixedLength,
	text:   repeated,
	whole: func(t *texts, text string, n int) string {
		end := strings.LastIndex(text, t.image)
		if end < 0 {
			return strings.Repeat(t.image, min(n, mostTokens)) + t.bos + text + "\n"
		}
		end += len(t.image)
		return text[:end] + t.bos + text[end:] + "\n"
	},
}
