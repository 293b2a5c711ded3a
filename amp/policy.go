package amp

import (
	"fmt"
	"strings"

	"github.com/snug-ml/snug"
)

// Policy says in which element types a model holds its parameters, computes,
// and hands out its results, as in google-deepmind/jmp.
type Policy struct {
	Params  snug.DType // of the parameters that the optimizer updates
	Compute snug.DType // of the operands of the forward and backward pass
	Output  snug.DType // of the model's output
}

// ParsePolicy parses a policy such as "params=f32,compute=bf16,output=f32".
//
// The keys params, compute and output, or p, c and o, come in any order; the
// types are the names that [snug.ParseDType] takes. Params defaults to f32, compute to
// params, and output to compute. A type alone, such as "bf16", stands for all
// three. Errors: [snug.ErrConfig] for an unknown, missing or repeated key,
// [snug.ErrDType] for a type that is unknown or not floating-point.
func ParsePolicy(s string) (Policy, error) {
	if !strings.Contains(s, "=") {
		t, err := parseFloat(s, s)
		return Policy{t, t, t}, err
	}
	var p Policy
	for part := range strings.SplitSeq(s, ",") {
		key, value, found := strings.Cut(part, "=")
		field := p.field(strings.TrimSpace(key))
		if !found || field == nil {
			return Policy{}, fmt.Errorf("amp: policy %q: %q: want params=, compute= or output= and a type: %w", s, part, snug.ErrConfig)
		}
		if *field != 0 {
			return Policy{}, fmt.Errorf("amp: policy %q: %q is repeated: %w", s, strings.TrimSpace(key), snug.ErrConfig)
		}
		t, err := parseFloat(s, value)
		if err != nil {
			return Policy{}, err
		}
		*field = t
	}
	if p.Params == 0 {
		p.Params = snug.F32
	}
	if p.Compute == 0 {
		p.Compute = p.Params
	}
	if p.Output == 0 {
		p.Output = p.Compute
	}
	return p, nil
}

// String returns the form that ParsePolicy takes, with all three keys.
func (p Policy) String() string {
	return fmt.Sprintf("params=%s,compute=%s,output=%s", p.Params, p.Compute, p.Output)
}

func (p *Policy) field(key string) *snug.DType {
	switch key {
	case "params", "p":
		return &p.Params
	case "compute", "c":
		return &p.Compute
	case "output", "o":
		return &p.Output
	}
	return nil
}

func parseFloat(policy, name string) (snug.DType, error) {
	t, err := snug.ParseDType(strings.TrimSpace(name))
	if err != nil {
		return 0, fmt.Errorf("amp: policy %q: %w", policy, err)
	}
	if !t.IsFloat() {
		return 0, fmt.Errorf("amp: policy %q: %s is not a floating-point type: %w", policy, t, snug.ErrDType)
	}
	return t, nil
}
