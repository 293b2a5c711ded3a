package transformer

import (
	"encoding/json"
	"fmt"

	"github.com/snug-ml/snug/qlora"
)

// fp8Stored is the quantization_config of transformers' FineGrainedFP8Config, which DeepSeek's and Qwen's folders have: 8-bit floats with
// a scale for each block, weight_scale_inv, by which they are multiplied. Without weight_block_size they have a scale for each matrix.
type fp8Stored struct {
	Method     string          `json:"quant_method"`
	Format     string          `json:"fmt"`
	Block      []int           `json:"weight_block_size"`
	Activation string          `json:"activation_scheme"`
	ScaleForm  string          `json:"scale_fmt"` // of which the files say more
	Float      json.RawMessage `json:"modules_to_not_convert"`
	Ignored    json.RawMessage `json:"ignored_layers"`
	More       json.RawMessage `json:"modules_to_convert"`
	Experts    string          `json:"expert_dtype"` // the families here have none
	Decode     bool            `json:"dequantize"`
	Cache      json.RawMessage `json:"kv_cache_scheme"`
}

func init() {
	registerStored(storedMethod{name: "fp8", read: func(raw json.RawMessage, _ *Config) (s storedAs, err error) {
		var q fp8Stored
		if err := readMember(raw, &q); err != nil {
			return s, err
		}
		switch q.Format {
		case "", "e4m3", "float8_e4m3fn":
			s.form = qlora.FP8
		case "e5m2", "float8_e5m2":
			s.form = qlora.FP8E5M2
		default:
			return s, fmt.Errorf("fmt is %.40q, want e4m3 or e5m2", q.Format)
		}
		s.floats = skipped(q.Float, q.Ignored)
		if len(q.Block) > 0 {
			s.block, err = q.Block, checkBlock("weight_block_size", q.Block)
		}
		return s, err
	}})
}
