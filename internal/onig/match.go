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
	"unsafe"

	"github.com/snug-ml/snug/internal/ucd"
)

// Pattern is a compiled pattern. It is safe for concurrent use.
type Pattern struct {
	source string
	code   []inst
	local  bool
	memory int // bytes
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

// Compile returns the pattern of a regular expression of at most 64 KiB. The pattern takes at most 1 MiB of memory: an
// expression that takes more, as counted repetitions of groups do, is an error.
func Compile(expr string) (*Pattern, error) {
	n, memory, err := parse(expr)
	if err != nil {
		return nil, err
	}
	p := &Pattern{source: expr, memory: memory}
	if err := p.compile(n); err != nil {
		return nil, fmt.Errorf("pattern %.200q: %w", expr, err)
	}
	p.emit(inst{op: opMatch})
	p.code = append(make([]inst, 0, len(p.code)), p.code...) // without the room of a growing slice
	p.local = !n.nullable() && !slices.ContainsFunc(p.code, func(i inst) bool {
		return i.op == opBehind || i.op == opTextBegin || i.op == opLineBegin
	})
	return p, nil
}

func (p *Pattern) emit(i inst) int {
	p.code = append(p.code, i)
	p.memory += int(unsafe.Sizeof(i)) + 8*len(i.sets)
	return len(p.code) - 1
}

func (p *Pattern) compile(n *node) error {
	if p.memory > maxMemory {
		return fmt.Errorf("a program of more than %d bytes", maxMemory)
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
	if n.allowed == nil && len(n.subs) <= 32 {
		n.allowed = p.allowed(n)
	}
	p.memory += 8 * len(n.subs)
	branches, jumps := make([]int, 0, len(n.subs)), make([]int, 0, len(n.subs))
	for _, sub := range n.subs {
		branches = append(branches, len(p.code))
		if err := p.compile(sub); err != nil {
			return err
		}
		jumps = append(jumps, p.emit(inst{op: opJump}))
	}
	for _, j := range jumps {
		p.code[j].other = len(p.code)
	}
	p.code[at].branches, p.code[at].allowed = branches, n.allowed
	return nil
}

// allowed returns the branches that a text with a first byte may match. A choice that is repeated has one table.
func (p *Pattern) allowed(n *node) *[256]uint32 {
	table := new([256]uint32)
	p.memory += int(unsafe.Sizeof(*table))
	for i, sub := range n.subs {
		set, free := p.first(sub)
		beyond := free || set.Has(utf8.RuneSelf, utf8.MaxRune)
		for b := range table {
			if free || b >= utf8.RuneSelf && beyond || b < utf8.RuneSelf && set.Contains(rune(b)) {
				table[b] |= 1 << i
			}
		}
	}
	return table
}

// beginning is what a match may begin with.
type beginning struct {
	set  *ucd.Set
	free bool // anything, also no text
}

// first returns what a match of n may begin with. It is free where that is anything, also
// no text.
func (p *Pattern) first(n *node) (set *ucd.Set, free bool) {
	if n.begins == nil {
		set, free = p.begin(n)
		if n.begins = &(beginning{set, free}); n.kind != one {
			p.memory += set.Size()
		}
	}
	return n.begins.set, n.begins.free
}

func (p *Pattern) begin(n *node) (set *ucd.Set, free bool) {
	if p.memory > maxMemory { // compile says so
		return nil, true
	}
	switch n.kind {
	case one:
		return n.set, false
	case repeat, atomic:
		set, free = p.first(n.subs[0])
		return set, free || n.nullable()
	case choice:
		sets := make([]*ucd.Set, len(n.subs))
		for i, sub := range n.subs {
			s, f := p.first(sub)
			sets[i], free = s, free || f
		}
		return ucd.Union(sets...), free
	case sequence:
		for _, sub := range n.subs {
			s, f := p.first(sub)
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
