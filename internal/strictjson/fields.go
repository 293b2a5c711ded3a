package strictjson

import (
	"reflect"
	"strings"
)

// field is what a struct has for one key.
type field struct {
	typ      reflect.Type
	quoted   bool // a string holds the value
	optional bool // json.Marshal may leave it out
	tagged   bool // the tag gives the key
}

// fields are a struct's by key.
type fields map[string]field

// fields returns the fields of a struct and of its embedded structs, by the rules of
// encoding/json: the smallest depth wins, and at one depth the only field whose tag gives
// the key.
func (c *checker) fields(t reflect.Type) fields {
	if known, ok := c.known[t]; ok {
		return known
	}
	known := fields{}
	hidden, visited := map[string]bool{}, map[reflect.Type]bool{}
	for level := []reflect.Type{t}; len(level) > 0; {
		found := map[string][]field{}
		var next []reflect.Type
		for _, s := range level {
			visited[s] = true
			next = append(next, fieldsHere(s, found)...)
		}
		for key, candidates := range found {
			if hidden[key] {
				continue
			}
			hidden[key] = true
			if f, ok := dominant(candidates); ok {
				known[key] = f
			}
		}
		level = level[:0]
		for _, s := range next {
			if !visited[s] {
				level = append(level, s)
			}
		}
	}
	c.known[t] = known
	return known
}

// fieldsHere adds the fields of one struct to found and returns the structs that it
// embeds.
func fieldsHere(s reflect.Type, found map[string][]field) (embedded []reflect.Type) {
	for i := range s.NumField() {
		f := s.Field(i)
		tag := f.Tag.Get("json")
		key, options, _ := strings.Cut(tag, ",")
		typ := f.Type
		if f.Anonymous && typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		inner := f.Anonymous && typ.Kind() == reflect.Struct
		switch {
		case tag == "-" || !f.IsExported() && !inner:
			continue
		case inner && key == "":
			embedded = append(embedded, typ)
			continue
		}
		here := field{typ: f.Type, tagged: key != ""}
		for option := range strings.SplitSeq(options, ",") {
			here.quoted = here.quoted || option == "string" && scalar(f.Type)
			here.optional = here.optional || option == "omitempty" || option == "omitzero"
		}
		if key == "" {
			key = f.Name
		}
		found[key] = append(found[key], here)
	}
	return embedded
}

// scalar reports whether the option "string" of a tag applies to t.
func scalar(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() >= reflect.Bool && t.Kind() <= reflect.Float64 || t.Kind() == reflect.String
}

// dominant returns the field with the key among the fields of one depth.
func dominant(candidates []field) (field, bool) {
	if len(candidates) == 1 {
		return candidates[0], true
	}
	var one field
	tagged := 0
	for _, f := range candidates {
		if f.tagged {
			one = f
			tagged++
		}
	}
	return one, tagged == 1
}
