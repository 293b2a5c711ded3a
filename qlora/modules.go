package qlora

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/strictjson"
)

// allLinear is the Pattern that selects all linear layers except the output layer.
const allLinear = "all-linear"

// Modules selects modules of a model by name, as PEFT's target_modules does. The zero
// value selects nothing by itself: each field of this type says what it means there.
type Modules struct {
	// Names are full names, such as "model.layers.0.mlp.up_proj", or their ends after a dot,
	// such as "up_proj".
	Names []string
	// Pattern is a regular expression that a full name must match from its first
	// to its last character, or "all-linear" in any case, which
	// selects all linear layers except the output layer. Set either Pattern or Names.
	//
	// PEFT gives it to Python's re.fullmatch. Accepted is what Go's regexp compiles
	// with the same meaning: no look-ahead or look-behind, back-references, \Z,
	// atomic groups or possessive quantifiers, and no {,n} or [:class:].
	Pattern string
}

func (m Modules) isZero() bool { return m.Names == nil && m.Pattern == "" }

func (m Modules) isAllLinear() bool { return strings.EqualFold(m.Pattern, allLinear) }

// MarshalJSON returns a string, an array of strings, or null for the zero value.
func (m Modules) MarshalJSON() ([]byte, error) {
	if m.Pattern != "" {
		return json.Marshal(m.Pattern)
	}
	return json.Marshal(m.Names)
}

// UnmarshalJSON is the inverse of MarshalJSON. An empty string is null, as in PEFT. The
// error wraps [snug.ErrCorrupt].
func (m *Modules) UnmarshalJSON(text []byte) error {
	if err := m.parse(text); err != nil {
		return fmt.Errorf("qlora: modules: %w: %w", err, snug.ErrCorrupt)
	}
	return nil
}

func (m *Modules) parse(text []byte) error {
	*m = Modules{}
	if len(text) > 0 && text[0] == '"' {
		return strictjson.Unmarshal(text, &m.Pattern)
	}
	return strictjson.Unmarshal(text, &m.Names)
}

// has reports whether a full name is one of Names, or ends in one.
func (m Modules) has(name string) (exact, suffix bool) {
	return slices.Contains(m.Names, name), slices.ContainsFunc(m.Names, func(end string) bool { return strings.HasSuffix(name, "."+end) })
}

// selector is the compiled selection of modules by an AdapterOptions.
type selector struct {
	targets, exclude Modules
	target, excluded *pattern
	layers           []int
	layerOf          []*pattern // what finds the number of a layer in a name
	ranks, alphas    []rule
	rank             int
	alpha            float32
}

// rule is a value for the modules whose names match a key.
type rule struct {
	key   string
	p     *pattern
	value float64
}

// selector compiles the config. Errors wrap snug.ErrConfig.
func (c *AdapterOptions) selector() (*selector, error) {
	s := &selector{targets: c.Targets, exclude: c.Exclude, layers: c.Layers, rank: c.Rank, alpha: c.Alpha}
	for _, m := range []struct {
		field string
		m     Modules
		to    **pattern
	}{{"target_modules", c.Targets, &s.target}, {"exclude_modules", c.Exclude, &s.excluded}} {
		if m.m.Pattern != "" && m.m.Names != nil {
			return nil, fmt.Errorf("%s has names and a pattern, want one of them: %w", m.field, snug.ErrConfig)
		}
		if m.m.Pattern == "" || m.field == "target_modules" && m.m.isAllLinear() {
			continue
		}
		p, err := compile(m.field, m.m.Pattern, `\A(?:%s)\z`)
		if err != nil {
			return nil, err
		}
		*m.to = p
	}
	switch {
	case c.Targets.Pattern != "" && (c.Layers != nil || len(c.LayersPattern) > 0):
		return nil, fmt.Errorf("layers_to_transform or layers_pattern with the pattern %q as target_modules, want a list of names: %w", c.Targets.Pattern, snug.ErrConfig)
	case len(c.LayersPattern) > 0 && c.Layers == nil:
		return nil, fmt.Errorf("layers_pattern %q without layers_to_transform: %w", c.LayersPattern, snug.ErrConfig)
	}
	if err := s.compileLayers(c.LayersPattern); err != nil {
		return nil, err
	}
	var err error
	if s.ranks, err = newRules("rank_pattern", c.Ranks); err == nil {
		s.alphas, err = newRules("alpha_pattern", c.Alphas)
	}
	return s, err
}

// compileLayers compiles the search for the number of a layer. A layers_pattern that
// holds an alternative is cut by it, as in PEFT.
func (s *selector) compileLayers(patterns []string) error {
	if len(patterns) == 0 {
		p, err := compile("layers_pattern", `[^.]*`, `\A(?:.*?\.%s\.(?P<idx>\d+)\.)`)
		s.layerOf = []*pattern{p}
		return err
	}
	for _, text := range patterns {
		p, err := compile("layers_pattern", text, `\A(?:(?:^|.*?\.)%s\.(?P<idx>\d+)\.)`)
		if err != nil {
			return err
		}
		s.layerOf = append(s.layerOf, p)
	}
	return nil
}

// selects reports whether PEFT gives a module an adapter.
func (s *selector) selects(name string) (bool, error) {
	exact, suffix := s.exclude.has(name)
	excluded := exact || suffix
	if s.excluded != nil {
		var err error
		if excluded, err = s.excluded.match(name); err != nil {
			return false, err
		}
	}
	switch {
	case excluded:
		return false, nil
	case s.target != nil:
		return s.target.match(name)
	case s.targets.isAllLinear() || s.targets.isZero():
		return true, nil
	}
	if exact, suffix = s.targets.has(name); exact || !suffix || len(s.layers) == 0 {
		return exact || suffix, nil // PEFT looks at the layer of a suffix only
	}
	for _, p := range s.layerOf {
		number, found, err := p.find(name)
		if err != nil {
			return false, err
		}
		if found {
			layer, err := strconv.Atoi(number)
			return err == nil && slices.Contains(s.layers, layer), nil
		}
	}
	return false, nil
}

// newRules compiles the ranks or the alphas of individual modules.
func newRules[T int | float32](field string, values map[string]T) (list []rule, err error) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		p, err := compile(field, key, `\A(.*\.)?(%s)\z`)
		if err != nil {
			return nil, err
		}
		list = append(list, rule{key, p, float64(values[key])})
	}
	return list, nil
}

// of returns the rank and the alpha of a module's adapter.
func (s *selector) of(name string) (rank int, alpha float32, err error) {
	r, err := find(s.ranks, name, float64(s.rank))
	if err != nil {
		return 0, 0, err
	}
	a, err := find(s.alphas, name, float64(s.alpha))
	return int(r), float32(a), err
}

// find returns the value of the key that matches a name. PEFT takes the first in the
// order of its file; here two keys with different values are an error.
func find(list []rule, name string, otherwise float64) (float64, error) {
	var by *rule
	for i := range list {
		matches, err := list[i].p.match(name)
		switch {
		case err != nil:
			return 0, err
		case !matches:
		case by != nil && by.value != list[i].value:
			return 0, fmt.Errorf("%s has two values for %q, by the keys %q and %q: %w", by.p.field, name, by.key, list[i].key, snug.ErrConfig)
		default:
			by = &list[i]
		}
	}
	for i := range list {
		if by == nil && list[i].key == name { // a name that is no pattern for itself
			by = &list[i]
		}
	}
	if by == nil {
		return otherwise, nil
	}
	return by.value, nil
}

// pattern is a Python regular expression that has the same meaning in Go.
type pattern struct {
	field   string
	re      *regexp.Regexp
	unicode bool // whether its classes hold more than ASCII in Python
}

var (
	// other finds text that Go compiles with another meaning: {,n}, classes in two
	// brackets, and escaped digits.
	other = regexp.MustCompile(`\{,|\[\[?\^?:|\\[0-9]`)
	// classes finds text that depends on Unicode in Python and on ASCII in Go, or the
	// other way round.
	classes = regexp.MustCompile(`\\[wWdDsSbB]|\(\?[a-z]*i`)
)

// compile compiles a pattern of a field in a frame, which is a format.
func compile(field, text, frame string) (*pattern, error) {
	if part := other.FindString(text); part != "" {
		return nil, fmt.Errorf("%s: the regular expression %.200q has %q, which is not supported; list the names of modules instead: %w", field, text, part, snug.ErrConfig)
	}
	if _, err := regexp.Compile(text); err != nil {
		return nil, fmt.Errorf("%s: the regular expression %.200q is not supported (%v); list the names of modules instead: %w", field, text, err, snug.ErrConfig)
	}
	re, err := regexp.Compile(fmt.Sprintf(frame, text))
	if err != nil {
		return nil, fmt.Errorf("%s: the regular expression %.200q is not supported (%v); list the names of modules instead: %w", field, text, err, snug.ErrConfig)
	}
	return &pattern{field, re, classes.MatchString(text)}, nil
}

// check returns an error unless a name has the same matches in Python and in Go.
func (p *pattern) check(name string) error {
	for _, r := range name {
		if r < ' ' || r > '~' && p.unicode {
			return fmt.Errorf("%s: the name %q with a regular expression whose classes differ beyond ASCII; list the names of modules instead: %w", p.field, name, snug.ErrConfig)
		}
	}
	return nil
}

func (p *pattern) match(name string) (bool, error) {
	return p.re.MatchString(name), p.check(name)
}

// find returns what the group idx matches, and whether the pattern matches with it.
func (p *pattern) find(name string) (number string, found bool, err error) {
	if err := p.check(name); err != nil {
		return "", false, err
	}
	m := p.re.FindStringSubmatch(name)
	if m == nil {
		return "", false, nil
	}
	return m[p.re.SubexpIndex("idx")], true, nil
}
