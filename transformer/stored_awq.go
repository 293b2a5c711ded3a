package transformer

import (
	"encoding/json"
	"strings"

	"github.com/snug-ml/snug/qlora"
)

// awqStored is what the quantization_config of transformers' AwqConfig and AutoAWQ says about the files. The other members say how other
// programs multiply by the matrices.
type awqStored struct {
	Bits    int             `json:"bits"`
	WBits   int             `json:"w_bit"`
	Size    int             `json:"group_size"`
	GSize   int             `json:"q_group_size"`
	Zeros   *bool           `json:"zero_point"`
	Version string          `json:"version"`
	Float   json.RawMessage `json:"modules_to_not_convert"`
}

func init() {
	registerStored(storedMethod{name: "awq", read: func(raw json.RawMessage, c *Config) (s storedAs, err error) {
		var q awqStored
		if err := json.Unmarshal(raw, &q); err != nil {
			return s, err
		}
		q.Bits, q.Size = max(q.Bits, q.WBits), q.Size+q.GSize // a file has one name of each
		if q.Size == 0 {
			q.Size = 128
		}
		switch {
		case q.Bits != 4:
			return s, notStored("bits %d, want 4", q.Bits)
		case q.Version != "" && !strings.EqualFold(q.Version, "gemm"):
			return s, notStored("version %.40q, want gemm", q.Version)
		case q.Zeros != nil && !*q.Zeros:
			return s, notStored("zero_point false")
		}
		return groupedAs(c, qlora.Groups{Bits: 4, Size: q.Size, Layout: qlora.AWQ}, skipped(q.Float))
	}})
}
