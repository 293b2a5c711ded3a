package strictjson

import (
	"bytes"
	"encoding/json"
)

// Float is a float that is written with a decimal point or an exponent, because transformers 5 tells floats and integers apart.
type Float float64

// MarshalJSON implements [json.Marshaler].
func (x Float) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(float64(x))
	if err == nil && !bytes.ContainsAny(text, ".eE") {
		text = append(text, ".0"...)
	}
	return text, err
}
