package remat

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strings"
	"unicode/utf8"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/strictjson"
)

// planVersion is the version of the JSON form of a Plan.
const planVersion = 1

// planJSON is the JSON form of a Plan.
type planJSON struct {
	Version int    `json:"version"`
	Name    string `json:"name"`
	Stages  int    `json:"stages"`
	Ops     string `json:"ops"` // as Plan.String writes them
	CRC32   string `json:"crc32"`
}

// checksum covers all fields of the plan.
func (j planJSON) checksum() string {
	text := fmt.Sprintf("%d\x00%s\x00%d\x00%s", j.Version, j.Name, j.Stages, j.Ops)
	return fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(text)))
}

// MarshalJSON writes a version, the name, the stages, the operations in the
// notation of [Plan.String] and a checksum. The error wraps [snug.ErrConfig]
// when the plan is not valid or its name is not UTF-8.
func (p Plan) MarshalJSON() ([]byte, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if !utf8.ValidString(p.Name) {
		return nil, fmt.Errorf("remat: plan: name %q: want UTF-8: %w", p.Name, snug.ErrConfig)
	}
	j := planJSON{Version: planVersion, Name: p.Name, Stages: p.Stages, Ops: p.String()}
	j.CRC32 = j.checksum()
	return json.Marshal(j)
}

// UnmarshalJSON is [ParsePlan] for values within larger documents. Note that
// [json.Unmarshal] itself reports text that is not JSON at all, with an error
// of its own.
func (p *Plan) UnmarshalJSON(data []byte) error {
	parsed, err := ParsePlan(data)
	if err != nil {
		return err
	}
	if p == nil {
		return errNilTarget
	}
	*p = parsed
	return nil
}

// ParsePlan reads the JSON form of one plan. Every key must occur once, in its own case,
// and no other key. The error wraps [snug.ErrCorrupt] when the text is malformed, of
// another version, fails its checksum, or holds a plan that is not valid.
func ParsePlan(data []byte) (Plan, error) {
	var j planJSON
	exact := strictjson.Options{Complete: true, MaxBytes: len(data)} // which the caller has in memory
	if err := exact.Unmarshal(data, &j); err != nil {
		return Plan{}, corrupt("%v", err)
	}
	if j.Version != planVersion {
		return Plan{}, corrupt("version %d, want %d", j.Version, planVersion)
	}
	if sum := j.checksum(); sum != j.CRC32 {
		return Plan{}, corrupt("checksum %s, want %s", sum, j.CRC32)
	}
	p := Plan{Name: j.Name, Stages: j.Stages}
	for text := range strings.FieldsSeq(j.Ops) {
		op, ok := parseOp(text)
		if !ok {
			return Plan{}, corrupt("operation %q", text)
		}
		p.Ops = append(p.Ops, op)
	}
	if err := p.Validate(); err != nil {
		return Plan{}, corrupt("%v", err)
	}
	return p, nil
}

// UnmarshalJSON reads the JSON form of costs, whose keys are the keys of the fields in the
// same case, each once, and no others. The error wraps [snug.ErrCorrupt]. [Costs.Validate]
// checks the numbers.
func (c *Costs) UnmarshalJSON(data []byte) error {
	type plain Costs // without this method
	exact := strictjson.Options{Complete: true, MaxBytes: len(data)}
	var read plain
	if err := exact.Unmarshal(data, &read); err != nil {
		return fmt.Errorf("remat: costs: %w: %w", err, snug.ErrCorrupt)
	}
	if c == nil {
		return errNilTarget
	}
	*c = Costs(read)
	return nil
}

var errNilTarget = fmt.Errorf("remat: JSON into a nil pointer: %w", snug.ErrConfig)

func corrupt(format string, args ...any) error {
	return fmt.Errorf("remat: saved plan: %s: %w", fmt.Sprintf(format, args...), snug.ErrCorrupt)
}
