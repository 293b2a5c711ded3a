package vision

import (
	"encoding/json"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/strictjson"
	"github.com/snug-ml/snug/layers"
)

// llavaModel is LLaVA 1.5: Liu et al. 2023, arXiv:2310.03744. Its projector is two matrices on the rows of one block of the tower.
var llavaModel = &modelFamily{
	modelType: "llava", towers: []string{"vision_tower.", "vision_tower.vision_model."}, projector: "multi_modal_projector.", text: "language_model.",
	read: func(c *connection, text []byte) error {
		_, err := readLlava(c, text)
		return err
	},
}

// readLlava reads the fields of LLaVA.
func readLlava(c *connection, text []byte) (*selection, error) {
	f := struct {
		placeholder
		Activation string          `json:"projector_hidden_act"`
		Bias       bool            `json:"multimodal_projector_bias"`
		Layer      json.RawMessage `json:"vision_feature_layer"`
		Strategy   string          `json:"vision_feature_select_strategy"`
	}{Activation: "gelu", Bias: true, Layer: json.RawMessage("-2"), Strategy: "default"}
	if err := lenientJSON.Unmarshal(text, &f); err != nil {
		return nil, fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	s, err := c.readTower(text, clipTower.tower, false)
	if err != nil {
		return nil, err
	}
	act, known := activations[f.Activation]
	at, list := 0, [1]int{}
	err = json.Unmarshal(f.Layer, &at)
	if err != nil {
		err = strictjson.Unmarshal(f.Layer, &list) // a list of one layer
		at = list[0]
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("vision_feature_layer is %.40s, want the number of one layer: %w", f.Layer, snug.ErrConfig)
	case !known:
		return nil, fmt.Errorf("projector_hidden_act is %.40q, which is not known: %w", f.Activation, snug.ErrConfig)
	case f.Strategy != "default" && f.Strategy != "full":
		return nil, fmt.Errorf("vision_feature_select_strategy is %.40q, want default or full: %w", f.Strategy, snug.ErrConfig)
	}
	if at < 0 {
		at += c.tower.Layers + 1
	}
	if at < 1 || at > c.tower.Layers {
		return nil, fmt.Errorf("vision_feature_layer is %s of a tower of %d layers: %w", f.Layer, c.tower.Layers, snug.ErrConfig)
	}
	c.tower.Layers, s.norms, c.axes.Image = at, false, f.or(32000)
	if towerFamily, _ := byType(c.tower.Family); f.Strategy == "default" {
		if s.from = 1; !towerFamily.class {
			return nil, fmt.Errorf("vision_feature_select_strategy is default, which drops the first patch of a tower without a class token: want full: %w", snug.ErrConfig)
		}
	}
	s.each = c.tower.Rows() - s.from
	c.layers = func(prefix string) []layers.Layer {
		return []layers.Layer{layers.NewLinear(prefix+"linear_1", c.tower.Width, c.width, f.Bias), act, layers.NewLinear(prefix+"linear_2", c.width, c.width, f.Bias)}
	}
	return s, nil
}
