package vision

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/transformer"
)

// paligemmaModel is PaliGemma on a Gemma, Beyer et al. 2024, arXiv:2407.07726, and PaliGemma 2 on a Gemma 2, arXiv:2412.03555. Its projector
// is one matrix, and the images are in the prefix of a text, whose tokens see each other in both directions. Its positions count from
// 1; a rope turns by differences, so that they may count from 0.
var paligemmaModel = &modelFamily{
	modelType: "paligemma", towers: []string{"vision_tower.", "vision_tower.vision_model."}, projector: "multi_modal_projector.", text: "language_model.",
	read: func(c *connection, text []byte) error {
		var f placeholder
		if err := lenientJSON.Unmarshal(text, &f); err != nil {
			return fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
		}
		if _, err := c.readTower(text, siglipTower.tower, false); err != nil {
			return err
		}
		c.axes.Image, c.prefixes = f.or(256000), true
		c.layers = func(prefix string) []layers.Layer {
			return []layers.Layer{layers.NewLinear(prefix+"linear", c.tower.Width, c.width, true)}
		}
		return nil
	},
}

// prefixesOf returns the tokens of each sequence before the first that is learned, or all of them.
func prefixesOf(b *transformer.Batch) (list [][2]int) {
	learns := false
	for i := range b.Tokens {
		if i == 0 || beginsAt(b, i) {
			list, learns = append(list, [2]int{i, i}), false
		}
		if s := &list[len(list)-1]; !learns {
			s[1] = i + 1
		}
		learns = learns || i < len(b.Labels) && b.Labels[i] >= 0
	}
	return list
}

// checkPrefixes returns an error unless each of a batch's Spans begins a sequence, and one has each placeholder of an image.
func checkPrefixes(b *transformer.Batch, placeholder int32) error {
	next, end := 0, 0
	for i, token := range b.Tokens {
		if next < len(b.Spans) && b.Spans[next][0] == i {
			if i > 0 && !beginsAt(b, i) {
				return fmt.Errorf("Text.Spans[%d] begins at token %d, within a sequence: want prefixes: %w", next, i, snug.ErrShape)
			}
			end, next = b.Spans[next][1], next+1
		}
		if token == placeholder && i >= end {
			return fmt.Errorf("token %d is of an image, and of no prefix: want Text.Spans of the tokens whose token_type_ids are 0, from the first of each sequence on: %w", i, snug.ErrConfig)
		}
	}
	return nil
}
