package onig

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/snug-ml/snug/internal/ucd"
)

// The limits of a pattern.
const (
	maxPattern = 1 << 16 // bytes
	maxDepth   = 64      // groups in groups
	maxRepeat  = 1000    // of a counted repetition
	maxMemory  = 1 << 20 // bytes of memory that a compiled pattern takes
)

// node is a part of a pattern.
type node struct {
	kind     kind
	set      *ucd.Set // of one
	subs     []*node
	min, max int // of repeat; max is -1 where there is no limit
	greed    greed
	begins   *beginning // what first returns, once it is known
	allowed  *[256]uint32
}

type kind byte

const (
	empty     kind = iota
	one            // a code point of set
	sequence       // subs, one after the other
	choice         // the first of subs that lets the rest match
	repeat         // subs[0], min to max times
	atomic         // subs[0] in its first way alone
	ahead          // subs[0] follows
	notAhead       // subs[0] does not follow
	behind         // subs[0], a set or a sequence of sets, comes before
	notBehind      // it does not
	textBegin      // \A
	textEnd        // \z
	lineBegin      // ^
	lineEnd        // $
)

type greed byte

const (
	greedy greed = iota
	lazy
	possessive
)

type parser struct {
	rest   string
	fold   bool // case does not count
	depth  int
	sets   map[string]*ucd.Set // by their text
	memory int                 // bytes of sets
}

// parse returns the tree of a pattern.
func parse(pattern string) (n *node, memory int, err error) {
	if len(pattern) > maxPattern {
		return nil, 0, fmt.Errorf("a pattern of %d bytes, want %d at most", len(pattern), maxPattern)
	}
	if !utf8.ValidString(pattern) {
		return nil, 0, errors.New("a pattern that is not UTF-8")
	}
	p := parser{rest: pattern, sets: map[string]*ucd.Set{}}
	n, err = p.choice()
	if err == nil && p.rest != "" {
		err = errors.New("a ) without its (")
	}
	if err != nil {
		return nil, 0, fmt.Errorf("pattern %.200q at byte %d: %w", pattern, len(pattern)-len(p.rest), err)
	}
	return n, p.memory, nil
}

// take takes prefix off the pattern if it is there.
func (p *parser) take(prefix string) bool {
	rest, ok := strings.CutPrefix(p.rest, prefix)
	p.rest = rest
	return ok
}

// next takes one code point, -1 at the end.
func (p *parser) next() rune {
	if p.rest == "" {
		return -1
	}
	r, size := utf8.DecodeRuneInString(p.rest)
	p.rest = p.rest[size:]
	return r
}

func (p *parser) choice() (*node, error) {
	if p.depth++; p.depth > maxDepth {
		return nil, fmt.Errorf("groups nested deeper than %d", maxDepth)
	}
	defer func() { p.depth-- }()
	n := &node{kind: choice}
	for {
		sub, err := p.sequence()
		if err != nil {
			return nil, err
		}
		n.subs = append(n.subs, sub)
		if !p.take("|") {
			break
		}
	}
	if len(n.subs) == 1 {
		return n.subs[0], nil
	}
	return n, nil
}

func (p *parser) sequence() (*node, error) {
	n := &node{kind: sequence}
	var folded strings.Builder
	for p.rest != "" && p.rest[0] != '|' && p.rest[0] != ')' {
		before := p.rest
		sub, err := p.item()
		if err != nil {
			return nil, err
		}
		text := before[:len(before)-len(p.rest)]
		if p.fold {
			folded.WriteString(strings.ToLower(text))
		}
		if err := p.share(sub, text); err != nil {
			return nil, err
		}
		if sub, err = p.repeats(sub); err != nil {
			return nil, err
		}
		n.subs = append(n.subs, sub)
	}
	for _, several := range []string{"ss", "ff", "fi", "fl", "st"} {
		if strings.Contains(folded.String(), several) {
			return nil, fmt.Errorf("%q without case, which also stands for one letter", several)
		}
	}
	if len(n.subs) == 1 {
		return n.subs[0], nil
	}
	return n, nil
}

// share gives items with the same text one set.
func (p *parser) share(n *node, text string) error {
	if n.kind != one {
		return nil
	}
	if p.fold {
		text = "i" + text
	} else {
		text = "c" + text
	}
	if set, found := p.sets[text]; found {
		n.set = set
		return nil
	}
	p.sets[text] = n.set
	if p.memory += n.set.Size(); p.memory > maxMemory {
		return fmt.Errorf("classes and characters that take more than %d bytes of memory", maxMemory)
	}
	return nil
}

// groups are what begins a group, the longest first.
var groups = []struct {
	open string
	kind kind
}{
	{"(?<=", behind}, {"(?<!", notBehind}, {"(?i:", sequence}, {"(?-i:", sequence}, {"(?:", sequence},
	{"(?=", ahead}, {"(?!", notAhead}, {"(?>", atomic}, {"(?", empty}, {"(", sequence},
}

// item takes what a quantifier may follow.
func (p *parser) item() (*node, error) {
	switch p.rest[0] {
	case '(':
		return p.group()
	case '[':
		return p.class()
	case '\\':
		return p.escaped()
	case '^':
		p.next()
		return &node{kind: lineBegin}, nil
	case '$':
		p.next()
		return &node{kind: lineEnd}, nil
	case '.':
		p.next()
		return &node{kind: one, set: ucd.Range('\n', '\n').Complement()}, nil
	case '*', '+', '?':
		return nil, fmt.Errorf("%c without what it repeats", p.rest[0])
	case '{', '}', ']':
		return nil, fmt.Errorf("%c without a backslash", p.rest[0])
	}
	return p.literal(p.next())
}

// literal returns the node of one code point.
func (p *parser) literal(r rune) (*node, error) {
	set := ucd.Range(r, r)
	if p.fold {
		if r > unicode.MaxASCII {
			return nil, fmt.Errorf("%q without case, want ASCII", r)
		}
		for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
			set = ucd.Union(set, ucd.Range(other, other))
		}
	}
	return &node{kind: one, set: set}, nil
}

func (p *parser) group() (*node, error) {
	for _, g := range groups {
		if !p.take(g.open) {
			continue
		}
		if g.kind == empty {
			return nil, fmt.Errorf("a group that begins with (?%.3s, which is not known", p.rest)
		}
		fold := p.fold
		switch g.open {
		case "(?i:":
			p.fold = true
		case "(?-i:":
			p.fold = false
		}
		sub, err := p.choice()
		if err != nil {
			return nil, err
		}
		p.fold = fold
		if !p.take(")") {
			return nil, errors.New("a ( without its )")
		}
		switch g.kind {
		case sequence:
			return &node{kind: sequence, subs: []*node{sub}}, nil
		case behind, notBehind:
			if _, ok := sub.sets(); !ok {
				return nil, errors.New("a look behind at more than a row of characters and classes")
			}
		}
		return &node{kind: g.kind, subs: []*node{sub}}, nil
	}
	panic("onig: no group")
}

// sets returns the sets that a node is a row of.
func (n *node) sets() ([]*ucd.Set, bool) {
	switch n.kind {
	case empty:
		return nil, true
	case one:
		return []*ucd.Set{n.set}, true
	case sequence:
		var row []*ucd.Set
		for _, sub := range n.subs {
			sets, ok := sub.sets()
			if !ok {
				return nil, false
			}
			row = append(row, sets...)
		}
		return row, true
	}
	return nil, false
}

// repeats takes the quantifiers of an item.
func (p *parser) repeats(n *node) (*node, error) {
	for first := true; p.rest != ""; first = false {
		lo, hi, counted := 0, -1, false
		switch p.rest[0] {
		case '*':
		case '+':
			lo = 1
		case '?':
			hi = 1
		case '{':
			counted = true
		default:
			return n, nil
		}
		if !first {
			return nil, errors.New("a quantifier of a quantifier, want a group around the first")
		}
		if n.kind >= ahead {
			return nil, errors.New("a quantifier of what takes no text")
		}
		if counted {
			var err error
			if lo, hi, err = p.count(); err != nil {
				return nil, err
			}
		} else {
			p.next()
		}
		if n.kind != one && n.nullable() && hi != 1 {
			return nil, errors.New("a group that may be empty, repeated")
		}
		n = &node{kind: repeat, subs: []*node{n}, min: lo, max: hi}
		switch {
		case counted && strings.HasPrefix(p.rest, "?"):
			return nil, errors.New("a ? after {}, whose meaning differs between engines")
		case p.take("?"):
			n.greed = lazy
		case !counted && p.take("+"):
			n.greed = possessive
		}
	}
	return n, nil
}

// count takes {n}, {n,}, {,m} or {n,m}.
func (p *parser) count() (lo, hi int, err error) {
	inside, rest, ok := strings.Cut(p.rest[1:], "}")
	from, to, comma := strings.Cut(inside, ",")
	if comma && from == "" && to != "" {
		from = "0"
	}
	lo, err1 := strconv.Atoi(from)
	hi = lo
	var err2 error
	if comma {
		if hi = -1; to != "" {
			hi, err2 = strconv.Atoi(to)
		}
	}
	if !ok || err1 != nil || err2 != nil || lo < 0 || lo > maxRepeat || hi > maxRepeat || comma && to != "" && hi < lo {
		return 0, 0, fmt.Errorf("%.20q, want {n}, {n,}, {,m} or {n,m} with n ≤ m ≤ %d", p.rest, maxRepeat)
	}
	p.rest = rest
	return lo, hi, nil
}

// nullable reports whether the node may match no text.
func (n *node) nullable() bool {
	switch n.kind {
	case one:
		return false
	case sequence:
		return !slices.ContainsFunc(n.subs, func(s *node) bool { return !s.nullable() })
	case choice:
		return slices.ContainsFunc(n.subs, (*node).nullable)
	case repeat:
		return n.min == 0 || n.subs[0].nullable()
	case atomic:
		return n.subs[0].nullable()
	}
	return true
}
