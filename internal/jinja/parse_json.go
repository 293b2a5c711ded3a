package jinja

import (
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
)

// fromJSON is the filter from_json of llama.cpp's templates: json.loads. A repeated key has its last value.
func fromJSON(s *state, v any, p params) any {
	p.takes()
	text, ok := v.(string)
	if !ok {
		fail("from_json of %s", a(v))
	}
	s.scan(len(text))
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	x := s.parsed(d, 0)
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		fail("from_json of %.40q: more than one value", text)
	}
	return x
}

// parsed reads one value.
func (s *state) parsed(d *json.Decoder, depth int) any {
	s.step()
	deep(depth)
	token, err := d.Token()
	if err != nil {
		fail("from_json: %w", err)
	}
	switch token := token.(type) {
	case string:
		return s.cut(token)
	case json.Number:
		return numberOf(string(token))
	case json.Delim:
		l, o := &list{}, &dict{values: map[any]any{}}
		for d.More() {
			if token == '[' {
				s.add(l, s.parsed(d, depth+1))
				continue
			}
			key, _ := s.parsed(d, depth+1).(string) // the decoder takes no other
			s.set(o, key, s.parsed(d, depth+1))
		}
		if _, err := d.Token(); err != nil {
			fail("from_json: %w", err)
		}
		if token == '[' {
			return l
		}
		return o
	}
	return token
}

// numberOf returns a number of JSON.
func numberOf(text string) any {
	if !strings.ContainsAny(text, ".eE") {
		return Whole(text)
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil {
		fail("the number %.40s is too large", text)
	}
	return x
}
