package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"
)

// fields are the members of a request's JSON object that were not read yet.
type fields map[string]json.RawMessage

// harmless are fields of the protocol that do not change the answer: bookkeeping of clients, and what speeds up other servers.
var harmless = []string{"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "parallel_tool_calls"}

// neutral are fields of what the server does not do, with the values that do not ask for it.
var neutral = map[string][]string{
	"n": {"1"}, "best_of": {"1"}, "frequency_penalty": {"0", "0.0"}, "presence_penalty": {"0", "0.0"}, "logit_bias": {"{}"}, "echo": {"false"}, "suffix": {`""`},
	"response_format": {`{"type":"text"}`}, "modalities": {`["text"]`}, "functions": {"[]"}, "function_call": {`"none"`, `"auto"`},
	"repetition_penalty": {"1", "1.0"}, "min_p": {"0", "0.0"},
}

// readFields reads the body of a request.
func readFields(body io.Reader) (fields, *failure) {
	d := json.NewDecoder(body)
	var f fields
	err := d.Decode(&f)
	if err == nil {
		if _, more := d.Token(); more != io.EOF {
			err = cmpErr(more, errors.New("there is more behind the JSON"))
		}
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, &failure{status: http.StatusRequestEntityTooLarge, message: "the body has more bytes than a prompt of the server's context: want fewer", code: "request_too_large"}
	case timedOut(err):
		return nil, &failure{status: http.StatusRequestTimeout, message: "the body did not arrive in time"}
	case err != nil:
		return nil, refuse("", "the body is not a JSON object: %v", err)
	case f == nil:
		return nil, refuse("", "the body is null, want a JSON object")
	}
	for name, text := range f {
		if !utf8.Valid(text) {
			return nil, refuse(name, "%.60s is not UTF-8", name)
		}
	}
	return f, nil
}

// cmpErr returns the error of reading, or else that there was something to read.
func cmpErr(read, found error) error {
	if read != nil {
		return read
	}
	return found
}

func timedOut(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// take reads a field into to, and reports whether it is there. null is as no field.
func (f fields) take(name string, to any, want string) (found bool, fault *failure) {
	text, found := f[name]
	delete(f, name)
	if !found || string(text) == "null" {
		return false, nil
	}
	if err := json.Unmarshal(text, to); err != nil {
		return false, refuse(name, "%s is %.60s, want %s", name, text, want)
	}
	return true, nil
}

// number reads a field with a number from least to most.
func (f fields) number(name string, standard, least, most float64) (x float64, fault *failure) {
	x = standard
	if _, fault := f.take(name, &x, "a number"); fault != nil {
		return x, fault
	}
	if !(x >= least && x <= most) {
		return x, refuse(name, "%s is %v, want %v to %v", name, x, least, most)
	}
	return x, nil
}

// count reads a field with a whole number from least to most, where most may be math.MaxInt64 for any.
func (f fields) count(name string, standard, least, most int64) (n int64, found bool, fault *failure) {
	n = standard
	if found, fault = f.take(name, &n, "a whole number"); fault != nil {
		return n, found, fault
	}
	switch {
	case !found || n >= least && n <= most:
		return n, found, nil
	case most == math.MaxInt64:
		return n, found, refuse(name, "%s is %d, want %d or more", name, n, least)
	}
	return n, found, refuse(name, "%s is %d, want %d to %d", name, n, least, most)
}

// rest returns a failure if a field is left that could change the answer.
func (f fields) rest() *failure {
	names := make([]string, 0, len(f))
	for name := range f {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		text := string(f[name])
		if text == "null" || slices.Contains(harmless, name) {
			continue
		}
		var compact bytes.Buffer
		if json.Compact(&compact, f[name]) == nil {
			text = compact.String()
		}
		values, known := neutral[name]
		switch {
		case known && slices.Contains(values, text):
		case known:
			return unsupported(name, "%s is %.60s, and this server can only have %s", name, text, strings.Join(values[:1], ""))
		default:
			return unsupported(name, "this server has no %.60q", name)
		}
	}
	return nil
}
