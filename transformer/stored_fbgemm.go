package transformer

import (
	"encoding/json"

	"github.com/snug-ml/snug/qlora"
)

// fbgemmStored is the quantization_config of transformers' FbgemmFp8Config: 8-bit floats with a scale for each row, weight_scale.
type fbgemmStored struct {
	Method string          `json:"quant_method"`
	Most   json.RawMessage `json:"activation_scale_ub"`
	Float  json.RawMessage `json:"modules_to_not_convert"`
}

func init() {
	registerStored(storedMethod{name: "fbgemm_fp8", read: func(raw json.RawMessage, _ *Config) (storedAs, error) {
		var q fbgemmStored
		err := readMember(raw, &q)
		return storedAs{form: qlora.FP8, floats: skipped(q.Float)}, err
	}})
}
