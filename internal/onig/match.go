// Package onig matches regular expressions by the rules of Oniguruma's Ruby syntax, as
// far as patterns of tokenizers need them: alternatives, groups, classes, properties,
// greedy, lazy and possessive repetition, and looks ahead and behind. A pattern with
// anything else is an error. Classes are those of [ucd], not of package unicode.
//
//	p, err := onig.Compile(`\p{L}+|\s+(?!\S)|\s+`)
//	err = p.Each(text, func(from, to int) error { ... })
package onig

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/snug-ml/snug/internal/ucd"
)

// Pattern is a compiled pattern. It is safe for concurrent use.
type Pattern struct {
	source string
	code   []inst
	local  bool
}

type opcode byte

const (
	opOne   opcode = iota
	opLoop         // one code point of set, min to max times
	opSplit        // go on at next, and at other if that fails
	opJump
	opChoice // branches, those that the next byte allows
	opLook   // the code up to other, ahead
	opBehind // sets, before here
	opAtomic // the code up to other, in its first way
	opTextBegin
	opTextEnd
	opLineBegin
	opLineEnd
	opMatch
)

type inst struct {
	op       opcode
	not      bool // of looks
	keep     bool // of opLoop: gives nothing back
	set      *ucd.Set
	ascii    [2]uint64 // set's
	min, max int
	other    int
	branches []int
	allowed  *[256]uint32 // the branches that a text with this first byte may match
	sets     []*ucd.Set
}

// maxCode is the longest program.
const maxCode = 1 << 15

// Compile returns the pattern of a regular expression.
func Compile(expr string) (*Pattern, error) {
	n, err := parse(expr)
	if err != nil {
		return nil, err
	}
	p := &Pattern{source: expr}
	if err := p.compile(n); err != nil {
		return nil, fmt.Errorf("pattern %.200q: %w", expr, err)
	}
	p.emit(inst{op: opMatch})
	p.local = !n.nullable() && !slices.ContainsFunc(p.code, func(i inst) bool {
		return i.op == opBehind || i.op == opTextBegin || i.op == opLineBegin
	})
	return p, nil
}

func (p *Pattern) emit(i inst) int {
	p.code = append(p.code, i)
	return len(p.code) - 1
}

func (p *Pattern) compile(n *node) error {
	if len(p.code) > maxCode {
		return fmt.Errorf("more than %d steps", maxCode)
	}
	switch n.kind {
	case one:
		p.emit(inst{op: opOne, set: n.set, ascii: ascii(n.set)})
	case sequence:
		for _, sub := range n.subs {
			if err := p.compile(sub); err != nil {
				return err
			}
		}
	case choice:
		return p.choice(n)
	case repeat:
		return p.repeat(n)
	case atomic, ahead, notAhead:
		at := p.emit(inst{op: opLook, not: n.kind == notAhead})
		if n.kind == atomic {
			p.code[at].op = opAtomic
		}
		if err := p.compile(n.subs[0]); err != nil {
			return err
		}
		p.code[at].other = p.emit(inst{op: opMatch})
	case behind, notBehind:
		sets, _ := n.subs[0].sets()
		slices.Reverse(sets)
		p.emit(inst{op: opBehind, not: n.kind == notBehind, sets: sets})
	case textBegin, textEnd, lineBegin, lineEnd:
		p.emit(inst{op: opTextBegin + opcode(n.kind-textBegin)})
	}
	return nil
}

func ascii(s *ucd.Set) (bits [2]uint64) {
	for r := rune(0); r < utf8.RuneSelf; r++ {
		if s.Contains(r) {
			bits[r/64] |= 1 << (r % 64)
		}
	}
	return bits
}

func (p *Pattern) choice(n *node) error {
	at := p.emit(inst{op: opChoice})
	var allowed *[256]uint32
	if len(n.subs) <= 32 {
		allowed = new([256]uint32)
	}
	var branches, jumps []int
	for i, sub := range n.subs {
		branches = append(branches, len(p.code))
		if allowed != nil {
			set, free := sub.first()
			for b := range allowed {
				if free || b >= utf8.RuneSelf && set.Has(utf8.RuneSelf, utf8.MaxRune) || b < utf8.RuneSelf && set.Contains(rune(b)) {
					allowed[b] |= 1 << i
				}
			}
		}
		if err := p.compile(sub); err != nil {
			return err
		}
		jumps = append(jumps, p.emit(inst{op: opJump}))
	}
	for _, j := range jumps {
		p.code[j].other = len(p.code)
	}
	p.code[at].branches, p.code[at].allowed = branches, allowed
	return nil
}

// first returns what a match of n may begin with. It is free where that is anything, also
// no text.
func (n *node) first() (set *ucd.Set, free bool) {
	switch n.kind {
	case one:
		return n.set, false
	case repeat, atomic:
		set, free = n.subs[0].first()
		return set, free || n.nullable()
	case choice:
		for _, sub := range n.subs {
			s, f := sub.first()
			set, free = ucd.Union(set, s), free || f
		}
		return set, free
	case sequence:
		for _, sub := range n.subs {
			s, f := sub.first()
			set = ucd.Union(set, s)
			if sub.kind >= ahead || f && !sub.nullable() {
				return nil, true
			}
			if !f {
				return set, false
			}
		}
	}
	return nil, true
}

func (p *Pattern) repeat(n *node) error {
	sub := n.subs[0]
	if row, ok := sub.sets(); ok && len(row) == 1 && n.greed != lazy {
		p.emit(inst{op: opLoop, set: row[0], ascii: ascii(row[0]), min: n.min, max: n.max, keep: n.greed == possessive})
		return nil
	}
	if n.greed == possessive {
		free := *n
		free.greed = greedy
		return p.compile(&node{kind: atomic, subs: []*node{&free}})
	}
	for range n.min {
		if err := p.compile(sub); err != nil {
			return err
		}
	}
	// split takes the way into the repetition, or the way out first where that is lazy.
	split := func() int { return p.emit(inst{op: opSplit, not: n.greed == lazy}) }
	if n.max < 0 {
		at := split()
		if err := p.compile(sub); err != nil {
			return err
		}
		p.emit(inst{op: opJump, other: at})
		p.code[at].other = len(p.code)
		return nil
	}
	var outs []int
	for range n.max - n.min {
		outs = append(outs, split())
		if err := p.compile(sub); err != nil {
			return err
		}
	}
	for _, at := range outs {
		p.code[at].other = len(p.code)
	}
	return nil
}
