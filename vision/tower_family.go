package vision

import (
	"fmt"
	"slices"
	"strings"

	"github.com/snug-ml/snug/layers"
)

// towerFamily is what differs between the models of one model_type and others. Each is in a file of its own.
type towerFamily struct {
	modelType  string // of a folder with a model for classification
	tower      string // of a folder with the tower alone, and of its fields where nested is not empty
	nested     string // the field of config.json with those of the tower, in models of images and text
	older      string // the field that older versions of transformers wrote too, which goes before nested; empty: none
	classifier string // the classes of transformers; empty: there is no model for classification
	towerClass string
	prefix     string // of the tower's tensors in a model for classification

	standard  TowerConfig    // what transformers takes for fields that are missing
	class     bool           // there is a class token
	batched   bool           // the shapes of the class token and of the positions have dimensions of 1 before theirs
	biased    bool           // the matrices of queries, keys and values always have biases
	patchBias bool           // the product of patches has a bias
	norms     bool           // outputs are normalized; else that norm is of a pooled row, which is not computed here
	means     []layers.Mean  // of the rows that the head reads
	resizes   bool           // positions are interpolated to the size of the images that the folder's processor makes
	buckets   bool           // positions are not interpolated
	antialias bool           // interpolation to fewer positions reads them all
	towerOnly string         // what the names of tensors begin with that a model for classification does not have; empty: none
	fresh     map[string]any // fields that config.json of a new tower has besides
	spellings []names        // of the tensors: what is written, and what else is read

	// read reads fields of config.json that others do not have; write returns them, nil for one that it does not have. nil: none.
	read  func(c *TowerConfig, text []byte) error
	write func(c *TowerConfig) (map[string]any, error)
}

// names are the tensors of a tower, without .weight and .bias where they have both.
type names struct {
	class, positions, patch string
	registers, distillation string // empty for none
	before                  string // the norm before the first block, empty for none
	block                   string // with the number of a block
	norm1, q, k, v, out     string
	norm2, up, down         string
	gated                   [3]string // gate, up and down of an MLP with a gate; empty for none
	packed                  string    // the tensor that has gate and up, one after the other; empty: each is a tensor
	scale1, scale2          string    // whole names of the LayerScales behind attention and MLP, empty for none
	norm                    string    // the norm behind the last block
	mask                    string    // the row of masked patches in pretraining, which is kept and not used; empty for none
}

var towerFamilies = []*towerFamily{vitTower, deitTower, clipTower, siglipTower, dinov2Tower, dinov2RegistersTower, idefics3Tower, smolvlmTower}

// byType returns the family of a model_type, and whether it is that of a tower alone.
func byType(name string) (f *towerFamily, alone bool) {
	for _, f := range towerFamilies {
		if name == f.modelType || name == f.tower {
			return f, name != f.modelType || f.nested == ""
		}
	}
	return nil, false
}

// meansOf returns the means of rows that the head reads. Registers, which follow the class token, are none of them.
func (f *towerFamily) meansOf(c *TowerConfig) (list []layers.Mean) {
	for _, m := range f.means {
		if m.From > 0 {
			m.From += c.Registers
		}
		list = append(list, m)
	}
	return list
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
	"gelu": layers.GELU, "gelu_pytorch_tanh": layers.GELUTanh, "gelu_new": layers.GELUTanh, "gelu_fast": layers.GELUTanh, "quick_gelu": layers.QuickGELU,
	"relu": layers.ReLU, "silu": layers.SiLU, "swish": layers.SiLU,
}

// of returns the prefix of the names of a block.
func (n *names) of(block int) string { return fmt.Sprintf(n.block, block) }

// inBlock lists the names in a block.
func (n *names) inBlock() []string {
	return append([]string{n.norm1, n.q, n.k, n.v, n.out, n.scale1, n.norm2, n.up, n.down, n.scale2}, n.gated[:]...)
}

// slot is where a parameter is in a file: from element lo of a tensor of a shape.
type slot struct {
	tensor string
	shape  []int
	lo     int
}

// whole reports whether the tensor has nothing else.
func (s slot) whole(p *layers.Param) bool { return slices.Equal(s.shape, p.Shape) }

// slot returns where a parameter is that has a name in this spelling.
func (n *names) slot(name string, p *layers.Param) slot {
	for i, half := range n.gated[:2] {
		if before, after, found := strings.Cut(name, half+"."); found && n.packed != "" {
			shape := slices.Clone(p.Shape)
			shape[0] *= 2
			return slot{before + n.packed + "." + after, shape, i * p.Len()}
		}
	}
	return slot{name, p.Shape, 0}
}
