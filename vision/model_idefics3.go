package vision

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/layers"
)

// idefics3Model is Idefics3: Laurençon et al. 2024, arXiv:2408.12637. An image is several tiles, of which squares of patches side by side are
// one row (pixel shuffle), and the projector is one matrix.
var idefics3Model = shuffleModel("idefics3", idefics3Tower, 128257)

// smolvlmModel is SmolVLM: Marafioti et al. 2025, arXiv:2504.05299.
var smolvlmModel = shuffleModel("smolvlm", smolvlmTower, 128257)

func shuffleModel(modelType string, tower *towerFamily, token int32) *modelFamily {
	return &modelFamily{
		modelType: modelType, towers: []string{"vision_model."}, projector: "connector.", body: "model.text_model.",
		read: func(c *connection, text []byte) error {
			f := struct {
				placeholder
				Scale int `json:"scale_factor"`
			}{Scale: 2}
			if err := lenientJSON.Unmarshal(text, &f); err != nil {
				return fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
			}
			s, err := c.readTower(text, tower.modelType, true)
			if err != nil {
				return err
			}
			side := c.tower.Image / c.tower.Patch
			if f.Scale < 1 || side%f.Scale != 0 {
				return fmt.Errorf("scale_factor is %d for %d by %d patches, want squares of them: %w", f.Scale, side, side, snug.ErrConfig)
			}
			c.axes.Image, c.reads = f.or(token), f.Scale*f.Scale*c.tower.Width
			s.each = (side / f.Scale) * (side / f.Scale)
			s.count = func(l Layout) (int, error) { return c.tilesOf(l.Shape) }
			s.gather = func(dst, rows []float32) { shuffle(dst, rows, side, f.Scale, c.tower.Width) }
			s.scatter = func(drows, dread []float32) { unshuffle(drows, dread, side, f.Scale, c.tower.Width) }
			c.layers = func(prefix string) []layers.Layer {
				return []layers.Layer{layers.NewLinear(prefix+"modality_projection.proj", c.reads, c.width, false)}
			}
			return nil
		},
	}
}

// tilesOf returns how many tiles a shape has, each of the size of the tower's images.
func (c *connection) tilesOf(shape []int) (int, error) {
	one := []int{c.tower.Channels, c.tower.Image, c.tower.Image}
	if len(shape) != 4 || shape[0] < 1 || shape[0] > most || !slices.Equal(shape[1:], one) {
		return 0, fmt.Errorf("the Layout has the Shape %v, want tiles of %v: %w", shape[:min(len(shape), 8)], one, snug.ErrShape)
	}
	return shape[0], nil
}

// shuffle writes the patches of squares with a side of scale, row by row, one after the other.
func shuffle(dst, patches []float32, side, scale, width int) {
	for y := 0; y < side; y += scale {
		for x := 0; x < side; x += scale {
			for row := range scale {
				dst = dst[copy(dst, patches[((y+row)*side+x)*width:][:scale*width]):]
			}
		}
	}
}

// unshuffle is the inverse of shuffle.
func unshuffle(patches, src []float32, side, scale, width int) {
	for y := 0; y < side; y += scale {
		for x := 0; x < side; x += scale {
			for row := range scale {
				src = src[copy(patches[((y+row)*side+x)*width:][:scale*width], src):]
			}
		}
	}
}
