package transformer

import (
	"encoding/json"

	"github.com/snug-ml/snug/qlora"
)

// mxfp4Stored is the quantization_config of transformers' Mxfp4Config: experts that share a tensor are in MXFP4, and all else in floats.
type mxfp4Stored struct {
	Method string          `json:"quant_method"`
	Float  json.RawMessage `json:"modules_to_not_convert"`
	Decode bool            `json:"dequantize"`
}

func init() {
	registerStored(storedMethod{name: "mxfp4", read: func(raw json.RawMessage, c *Config) (s storedAs, err error) {
		var q mxfp4Stored
		if err := readMember(raw, &q); err != nil {
			return s, err
		}
		if c.names().experts.joined != byTurns {
			return s, notStored("for a family without experts that share a tensor")
		}
		return storedAs{form: qlora.MXFP4, floats: func(c *Config, modules []string) bool {
			_, joined := c.slot(modules[0] + ".weight")
			return !joined
		}}, nil
	}})
}
