package vision

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug/layers"
)

// towerFamily is what differs between the models of one model_type and others. Each is in a file of its own.
type towerFamily struct {
	modelType  string // of a folder with a model for classification
	tower      string // of a folder with the tower alone, and of its fields where nested is not empty
	nested     string // the field of config.json with those of the tower, in models of images and text
	older      string // the field that older versions of transformers wrote too, which goes before nested; empty: none
	classifier string // the classes of transformers
	towerClass string
	prefix     string // of the tower's tensors in a model for classification

	standard  TowerConfig    // what transformers takes for fields that are missing
	class     bool           // there is a class token
	batched   bool           // the shapes of the class token and of the positions have dimensions of 1 before theirs
	patchBias bool           // the product of patches has a bias
	norms     bool           // outputs are normalized; else that norm is of a pooled row, which is not computed here
	means     []layers.Mean  // of the rows that the head reads
	towerOnly string         // what the names of tensors begin with that a model for classification does not have; empty: none
	fresh     map[string]any // fields that config.json of a new tower has besides
	spellings []names        // of the tensors: what is written, and what else is read
}

// names are the tensors of a tower, without .weight and .bias where they have both.
type names struct {
	class, positions, patch string
	before                  string // the norm before the first block, empty for none
	block                   string // with the number of a block
	norm1, q, k, v, out     string
	norm2, up, down         string
	norm                    string // the norm behind the last block
}

var towerFamilies = []*towerFamily{vitTower, clipTower, siglipTower}

// byType returns the family of a model_type, and whether it is that of a tower alone.
func byType(name string) (f *towerFamily, alone bool) {
	for _, f := range towerFamilies {
		if name == f.modelType || name == f.tower {
			return f, name != f.modelType || f.nested == ""
		}
	}
	return nil, false
}

// modelTypes lists what byType finds.
func modelTypes() (list []string) {
	for _, f := range towerFamilies {
		for _, name := range []string{f.modelType, f.tower} {
			if !slices.Contains(list, name) {
				list = append(list, name)
			}
		}
	}
	return list
}

// activations are the functions that config.json may name.
var activations = map[string]layers.Activation{
	"gelu": layers.GELU, "gelu_pytorch_tanh": layers.GELUTanh, "gelu_new": layers.GELUTanh, "quick_gelu": layers.QuickGELU,
	"relu": layers.ReLU, "silu": layers.SiLU, "swish": layers.SiLU,
}

// of returns the prefix of the names of a block.
func (n *names) of(block int) string { return fmt.Sprintf(n.block, block) }
