package safetensors

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/snug-ml/snug/internal/fault"
)

// parse returns the header of a text, without Data.
func parse(text []byte) (*Header, error) {
	switch {
	case text[0] != '{':
		return nil, corrupt("the header begins with %q, want {", text[:1])
	case !utf8.Valid(text):
		return nil, corrupt("the header is not UTF-8")
	}
	if err := json.Unmarshal(text, new(struct{})); err != nil { // which looks at the syntax, and at no more
		return nil, corrupt("the header is not a JSON object: %v", err)
	}
	h := &Header{index: map[string]int{}}
	c := cursor{text}
	metadata := false
	err := c.object(func(key string) error {
		_, taken := h.index[key]
		if taken || key == metadataKey && metadata {
			return corrupt("key %.100q comes twice in the header", key)
		}
		if key != metadataKey {
			return h.tensor(&c, key)
		}
		metadata = true
		return h.metadata(&c)
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(h.Tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End))
	})
	return h, h.check()
}

// metadata takes the value of metadataKey: an object of strings, or null for none.
func (h *Header) metadata(c *cursor) error {
	if c.next() == 'n' {
		c.token()
		return nil
	}
	h.Metadata = map[string]string{}
	return fault.Of(c.strings(h.Metadata), metadataKey)
}

// tensor takes the value of a tensor's name.
func (h *Header) tensor(c *cursor, name string) error {
	t, err := c.tensor()
	if err != nil {
		return fmt.Errorf("tensor %.100q: %w", name, err)
	}
	t.Name = name
	h.Tensors, h.index[name] = append(h.Tensors, t), 0
	return nil
}

// check says whether the tensors, which are sorted, lie one after the other and
// are as long as type and shape say, and sets the index.
func (h *Header) check() error {
	end := int64(0)
	for i := range h.Tensors {
		t := &h.Tensors[i]
		size, err := t.size()
		switch {
		case err != nil:
			return corrupt("tensor %.100q: %w", t.Name, err)
		case t.End-t.Begin != size:
			return corrupt("tensor %.100q: bytes %d to %d, want the %d of its type and shape", t.Name, t.Begin, t.End, size)
		case t.Begin < end:
			return corrupt("tensor %.100q: bytes %d to %d overlap the bytes of %.100q, which end at %d", t.Name, t.Begin, t.End, h.Tensors[i-1].Name, end)
		case t.Begin > end:
			return corrupt("tensor %.100q: bytes %d to %d, a hole of %d before them", t.Name, t.Begin, t.End, t.Begin-end)
		}
		end = t.End
		h.index[t.Name] = i
	}
	return nil
}

// tensor takes the object that describes a tensor. It passes over fields that it
// does not know, as the reference implementation does.
func (c *cursor) tensor() (Tensor, error) {
	var t Tensor
	var offsets []int64
	err := c.object(func(key string) error {
		if key == "dtype" && t.DType != "" || key == "shape" && t.Shape != nil || key == "data_offsets" && offsets != nil {
			return corrupt("key %q comes twice", key)
		}
		var err error
		switch key {
		case "dtype":
			t.DType, err = c.dtype()
		case "shape":
			t.Shape, err = numbers[int](c, key)
		case "data_offsets":
			offsets, err = numbers[int64](c, key)
		default:
			err = c.skip(2)
		}
		return err
	})
	switch {
	case err != nil:
		return t, err
	case t.DType == "":
		return t, corrupt("no dtype")
	case t.Shape == nil:
		return t, corrupt("no shape")
	case len(offsets) != 2:
		return t, corrupt("%d data_offsets, want 2", len(offsets))
	case offsets[0] > offsets[1]:
		return t, corrupt("data_offsets %d begin after their end", offsets)
	}
	t.Begin, t.End = offsets[0], offsets[1]
	return t, nil
}

func (c *cursor) dtype() (string, error) {
	name, err := c.text()
	if err == nil && Bits(name) == 0 {
		err = corrupt("%.100q is not a type of the format", name)
	}
	if err != nil {
		return "", fmt.Errorf("dtype: %w", err)
	}
	return name, nil
}

// strings takes an object of strings into m.
func (c *cursor) strings(m map[string]string) error {
	return c.object(func(key string) error {
		if _, taken := m[key]; taken {
			return corrupt("key %.100q comes twice", key)
		}
		value, err := c.text()
		if err != nil {
			return fmt.Errorf("key %.100q: %w", key, err)
		}
		m[key] = value
		return nil
	})
}
