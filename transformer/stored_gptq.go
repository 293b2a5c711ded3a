package transformer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/qlora"
)

// gptqStored is what the quantization_config of transformers' GPTQConfig, AutoGPTQ and GPTQModel says about the files. The other members
// say how the matrices were quantized, or how other programs multiply by them. Act order is in the files, g_idx.
type gptqStored struct {
	Bits    int             `json:"bits"`
	Size    int             `json:"group_size"`
	Layout  string          `json:"checkpoint_format"`
	Format  string          `json:"format"`
	Pack    string          `json:"pack_dtype"`
	Dynamic json.RawMessage `json:"dynamic"`
	Marlin  bool            `json:"is_marlin_format"`
	Order   bool            `json:"desc_act"`
	Sym     bool            `json:"sym"`
}

// gptqLayouts are the values of checkpoint_format.
var gptqLayouts = map[string]qlora.Layout{"": qlora.GPTQ, "gptq": qlora.GPTQ, "gptq_v2": qlora.GPTQv2}

func init() {
	registerStored(storedMethod{name: "gptq", read: func(raw json.RawMessage, c *Config) (s storedAs, err error) {
		q := gptqStored{Size: 128, Sym: true}
		if err := json.Unmarshal(raw, &q); err != nil {
			return s, err
		}
		if q.Layout == "" {
			q.Layout = q.Format
		}
		layout, known := gptqLayouts[q.Layout]
		switch {
		case !known || q.Marlin:
			return s, notStored("checkpoint_format %.40q, want gptq or gptq_v2", q.Layout)
		case q.Bits != 2 && q.Bits != 4 && q.Bits != 8:
			return s, notStored("bits %d, want 2, 4 or 8", q.Bits)
		case q.Pack != "" && q.Pack != "int32":
			return s, notStored("pack_dtype %.40q, want int32", q.Pack)
		case !slices.Contains([]string{"", "null", "{}"}, compact(q.Dynamic)):
			return s, notStored("dynamic %.40s, which gives modules other bits", q.Dynamic)
		}
		return groupedAs(c, qlora.Groups{Bits: q.Bits, Size: q.Size, Layout: layout, Ordered: q.Order}, q.Sym, nil)
	}})
}

// groupedAs returns what the files of a method with groups have. Symmetric groups have no zero points of their own. Groups are cut to
// powers of two, as package qlora does, and those of a whole row to those of the width of the model.
func groupedAs(c *Config, g qlora.Groups, symmetric bool, floats func(*Config, []string) bool) (s storedAs, err error) {
	if g.Size != -1 && g.Size < 1 {
		return s, fmt.Errorf("group_size is %d, want 1 or more, or -1", g.Size)
	}
	size := g.Size
	if size == -1 {
		size = max(1, c.Dim)
	}
	size = min(size&-size, qlora.MaxBlock)
	scale := 32. // in float32
	if !symmetric || g.Bits != 4 || size < 32 {
		scale = 40 // and a zero point
	}
	return storedAs{form: qlora.Grouped, groups: g, bits: float64(max(4, g.Bits)) + scale/float64(size), floats: floats}, nil
}

// grouped is the form of integers in groups. The file has no tensor called weight, unless it has integers that are not packed.
func grouped() storedForm {
	return storedForm{
		find: func(w *amp.Weights, want amp.Tensor) (bool, string) {
			module := strings.TrimSuffix(want.Name, "weight")
			_, found := w.Tensor(module + "qweight")
			_, packed := w.Tensor(module + "weight_packed")
			if found || packed {
				return true, "" // its size depends on the bits, and is seen when it is read
			}
			return typed("I8")(w, want)
		},
		beside: []string{"qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_shape", "weight_scale", "weight_zero_point", "weight_g_idx"},
		whole:  true, host: true, zeroBias: true,
	}
}
