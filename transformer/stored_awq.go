package transformer

import (
	"cmp"
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
	Format  string          `json:"format"`            // of transformers 5
	Layout  string          `json:"checkpoint_format"` // of GPTQModel
	Float   json.RawMessage `json:"modules_to_not_convert"`
}

func init() {
	registerStored(storedMethod{name: "awq", read: func(raw json.RawMessage, c *Config) (s storedAs, err error) {
		var q awqStored
		if err := json.Unmarshal(raw, &q); err != nil {
			return s, err
		}
		q.Bits, q.Size = cmp.Or(q.Bits, q.WBits, 4), cmp.Or(q.Size, q.GSize, 128)
		q.Version = cmp.Or(q.Version, q.Format, q.Layout)
		switch {
		case q.Bits != 4:
			return s, notStored("bits %d, want 4", q.Bits)
		case q.Version != "" && !strings.EqualFold(q.Version, "gemm"):
			return s, notStored("version %.40q, want gemm", q.Version)
		case q.Zeros != nil && !*q.Zeros:
			return s, notStored("zero_point false")
		}
		return groupedAs(c, qlora.Groups{Bits: 4, Size: q.Size, Layout: qlora.AWQ}, false, skipped(q.Float))
	}})
}
