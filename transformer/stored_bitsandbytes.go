package transformer

import (
	"encoding/json"

	"github.com/snug-ml/snug/qlora"
)

// bitsandbytesStored is the quantization_config of transformers' BitsAndBytesConfig. Integers of 8 bits are read, with a scale for each
// row, SCB.
type bitsandbytesStored struct {
	Method        string          `json:"quant_method"`
	Int8          bool            `json:"load_in_8bit"`
	Int4          bool            `json:"load_in_4bit"`
	OwnInt8       bool            `json:"_load_in_8bit"`
	OwnInt4       bool            `json:"_load_in_4bit"`
	Threshold     float64         `json:"llm_int8_threshold"`
	Skip          json.RawMessage `json:"llm_int8_skip_modules"`
	Offload       bool            `json:"llm_int8_enable_fp32_cpu_offload"`
	Half          bool            `json:"llm_int8_has_fp16_weight"`
	Compute4      json.RawMessage `json:"bnb_4bit_compute_dtype"`
	Storage4      json.RawMessage `json:"bnb_4bit_quant_storage"`
	Type4         json.RawMessage `json:"bnb_4bit_quant_type"`
	DoubleQuants4 json.RawMessage `json:"bnb_4bit_use_double_quant"`
}

func init() {
	registerStored(storedMethod{name: "bitsandbytes", read: func(raw json.RawMessage, _ *Config) (s storedAs, err error) {
		var q bitsandbytesStored
		if err := readMember(raw, &q); err != nil {
			return s, err
		}
		if !q.Int8 && !q.OwnInt8 || q.Int4 || q.OwnInt4 || q.Half {
			return s, notStored("not in 8 bits")
		}
		return storedAs{form: qlora.INT8, floats: skipped(q.Skip)}, nil
	}})
}
