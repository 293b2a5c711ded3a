package dataset

import (
	"encoding/json"
	"fmt"
	"strings"
)

// exact returns an error if a chat template would be given another value: NaN and Infinity,
// numbers beyond those of a float64, and values of tables that have no JSON.
func exact(x value) error {
	switch x := x.(type) {
	case literal:
		return fmt.Errorf("%s is not JSON: write null, or a string", string(x))
	case blob:
		return fmt.Errorf("bytes have no JSON: store them as a string")
	case foreign:
		return fmt.Errorf("%s has no JSON: store it as a string", string(x))
	case json.Number:
		if _, err := x.Float64(); err != nil && !isInteger(string(x)) {
			return fmt.Errorf("the number %s has more than 64 bits, want a smaller one, or a string", shortened(string(x)))
		}
	case list:
		for i, e := range x {
			if err := exact(e); err != nil {
				return at(fmt.Sprintf("[%d]", i), err)
			}
		}
	case object:
		for _, m := range x {
			if err := exact(m.Value); err != nil {
				return at(readable(m.Name), err)
			}
		}
	}
	return nil
}

// isInteger reports whether a number of JSON has neither a point nor an exponent.
func isInteger(number string) bool { return !strings.ContainsAny(number, ".eE") }

// at puts a name before an error, and joins it with those of what lies within.
func at(name string, err error) error {
	if strings.HasPrefix(err.Error(), "[") {
		return fmt.Errorf("%s%w", name, err)
	}
	return fmt.Errorf("%s: %w", name, err)
}
