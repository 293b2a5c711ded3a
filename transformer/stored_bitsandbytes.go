package transformer

import (
	"encoding/json"
	"fmt"

	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/qlora"
)

// bitsandbytesStored is the quantization_config of transformers' BitsAndBytesConfig: NF4 or FP4, with double quantization or without, or
// integers of 8 bits with a scale for each row, SCB. The files say more: the blocks, and how the codes are stored.
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
	Type4         string          `json:"bnb_4bit_quant_type"`
	DoubleQuants4 bool            `json:"bnb_4bit_use_double_quant"`
}

func init() {
	registerStored(storedMethod{name: "bitsandbytes", read: func(raw json.RawMessage, _ *Config) (s storedAs, err error) {
		var q bitsandbytesStored
		if err := readMember(raw, &q); err != nil {
			return s, err
		}
		in8, in4 := q.Int8 || q.OwnInt8, q.Int4 || q.OwnInt4
		switch {
		case in8 && !in4 && !q.Half:
			return storedAs{form: qlora.INT8, floats: skipped(q.Skip)}, nil
		case in4 && !in8:
			form, known := bitsandbytesTypes[q.Type4]
			if !known {
				return s, fmt.Errorf("bnb_4bit_quant_type is %.40q, want nf4 or fp4", q.Type4)
			}
			s = storedAs{form: form, floats: skipped(q.Skip)}
			if !q.DoubleQuants4 {
				s.bits = 4 + 32./64 // a float32 for 64 elements
			}
			return s, nil
		}
		return s, notStored("without one of load_in_4bit and load_in_8bit")
	}})
}

// bitsandbytesTypes are the types of 4 bits; without a type it is FP4.
var bitsandbytesTypes = map[string]qlora.Type{"nf4": qlora.NF4, "fp4": qlora.FP4, "": qlora.FP4}

// nibbles is the form of bitsandbytes' 4 bits: two codes in a byte, in a tensor whose elements may have any type, and a quant_state.
func nibbles(t qlora.Type) storedForm {
	state, other := "quant_state.bitsandbytes__nf4", "quant_state.bitsandbytes__fp4"
	if t == qlora.FP4 {
		state, other = other, state
	}
	return storedForm{
		find: func(w *amp.Weights, want amp.Tensor) (bool, string) {
			if _, found := w.Tensor(want.Name + "." + state); !found {
				if _, found = w.Tensor(want.Name + "." + other); !found {
					return false, ""
				}
				return true, fmt.Sprintf("%s is not in %s, which config.json says (bnb_4bit_quant_type)", want.Name, t)
			}
			have, _ := w.Tensor(want.Name)
			if n := int64(want.Len()); have.Bytes() != (n+1)/2 {
				return true, fmt.Sprintf("%s has %d bytes of codes, want %d for %v in %s", want.Name, have.Bytes(), (n+1)/2, want.Shape, t)
			}
			return true, ""
		},
		beside: []string{"weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map", "weight." + state, "weight." + other},
		whole:  true, // blocks go on from one row to the next
	}
}
