package vision

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/layers"
)

// gemma3Model is Gemma 3: Gemma Team 2025, arXiv:2503.19786. Squares of the tower's rows are averaged, normalized and projected, and the rows
// of an image see each other in both directions.
var gemma3Model = &modelFamily{
	modelType: "gemma3", towers: []string{"vision_tower.", "vision_tower.vision_model."}, projector: "multi_modal_projector.", text: "language_model.",
	read: func(c *connection, text []byte) error {
		f := struct {
			placeholder
			Each int `json:"mm_tokens_per_image"`
		}{Each: 256}
		if err := lenientJSON.Unmarshal(text, &f); err != nil {
			return fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
		}
		s, err := c.readTower(text, siglipTower.tower, false)
		if err != nil {
			return err
		}
		if family, _ := byType(c.tower.Family); family.class {
			return fmt.Errorf("vision_config: model_type is of a tower with a class token, want %s: %w", siglipTower.tower, snug.ErrConfig)
		}
		c.axes.Image = f.or(262144)
		side, to := c.tower.Image/c.tower.Patch, 1
		for to < side && to*to < f.Each {
			to++
		}
		if to*to != f.Each || side%to != 0 {
			return fmt.Errorf("mm_tokens_per_image is %d for %d by %d patches, want squares of them: %w", f.Each, side, side, snug.ErrConfig)
		}
		s.each, c.spans = f.Each, true
		s.gather = func(dst, rows []float32) { squareMeans(dst, rows, side, side/to, c.tower.Width) }
		s.scatter = func(drows, dread []float32) { squareSpread(drows, dread, side, side/to, c.tower.Width) }
		c.layers = func(prefix string) []layers.Layer {
			norm := layers.NewRMSNorm(prefix+"mm_soft_emb_norm", c.tower.Width)
			norm.Eps, norm.PlusOne = float32(c.tower.Eps), true
			project := layers.NewLinear(prefix, c.tower.Width, c.width, false)
			project.Weight.Name, project.Weight.Shape, project.Transposed = prefix+"mm_input_projection_weight", []int{c.tower.Width, c.width}, true
			return []layers.Layer{norm, project}
		}
		return nil
	},
}

// squareSpread writes the gradient of patches from that of the means of their squares.
func squareSpread(drows, dread []float32, side, square, width int) {
	for i := range side * side {
		from, to := dread[(i/side/square*(side/square)+i%side/square)*width:][:width], drows[i*width:][:width]
		for k, v := range from {
			to[k] = v / float32(square*square)
		}
	}
}

// squareMeans writes the means of squares of patches with a side of square.
func squareMeans(dst, rows []float32, side, square, width int) {
	clear(dst)
	for i := range side * side {
		to := dst[(i/side/square*(side/square)+i%side/square)*width:][:width]
		for k, v := range rows[i*width:][:width] {
			to[k] += v
		}
	}
	for k := range dst {
		dst[k] /= float32(square * square)
	}
}
