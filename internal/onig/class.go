package onig

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/snug-ml/snug/internal/ucd"
)

// controls are the escapes of one control character.
var controls = map[rune]rune{'t': '\t', 'n': '\n', 'r': '\r', 'f': '\f', 'v': '\v', 'a': '\a', 'e': 0x1B}

// escape takes an escape. It is a set where set is not nil, and else the code point r.
func (p *parser) escape() (set *ucd.Set, r rune, err error) {
	p.take(`\`)
	switch r = p.next(); {
	case r < 0:
		return nil, 0, errors.New("a backslash at the end")
	case strings.ContainsRune("swdSWD", r):
		set = ucd.MustClass(`\` + string(unicode.ToLower(r)))
		if unicode.IsUpper(r) {
			set = set.Complement()
		}
		return set, 0, nil
	case r == 'p' || r == 'P':
		set, err = p.property(r == 'P')
		return set, 0, err
	case r == 'x' && strings.HasPrefix(p.rest, "{"):
		digits, rest, _ := strings.Cut(p.rest[1:], "}")
		p.rest = rest
		r, err = codePoint(digits)
		return nil, r, err
	case r == 'x' || r == 'u':
		n := 2
		if r == 'u' {
			n = 4
		}
		if len(p.rest) < n {
			return nil, 0, fmt.Errorf(`\%c%s, want %d digits`, r, p.rest, n)
		}
		digits := p.rest[:n]
		p.rest = p.rest[n:]
		if r, err = codePoint(digits); err == nil && n == 2 && r > unicode.MaxASCII {
			err = fmt.Errorf(`\x%s, which is a byte and no character`, digits)
		}
		return nil, r, err
	case controls[r] != 0:
		return nil, controls[r], nil
	case r > unicode.MaxASCII || '0' <= r && r <= '9' || 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z':
		return nil, 0, fmt.Errorf(`the escape \%c, which is not known`, r)
	}
	return nil, r, nil
}

func codePoint(digits string) (rune, error) {
	n, err := strconv.ParseUint(digits, 16, 32)
	if err != nil || n > unicode.MaxRune || !utf8.ValidRune(rune(n)) {
		return 0, fmt.Errorf("%.20q, want the hexadecimal digits of a code point", digits)
	}
	return rune(n), nil
}

// property takes {Name} or {^Name}.
func (p *parser) property(negated bool) (*ucd.Set, error) {
	name, rest, ok := strings.Cut(p.rest, "}")
	if !ok || !strings.HasPrefix(name, "{") {
		return nil, fmt.Errorf(`\p%.20s, want \p{Name}`, p.rest)
	}
	name = name[1:]
	if bare, inverse := strings.CutPrefix(name, "^"); inverse {
		name, negated = bare, !negated
	}
	set, ok := ucd.Class(name)
	if !ok || strings.ContainsAny(name, `\:`) {
		return nil, fmt.Errorf("the property %.40q, which is not known", name)
	}
	p.rest = rest
	if negated {
		set = set.Complement()
	}
	return set, nil
}

// escaped takes an escape outside of a class.
func (p *parser) escaped() (*node, error) {
	switch {
	case p.take(`\A`):
		return &node{kind: textBegin}, nil
	case p.take(`\z`):
		return &node{kind: textEnd}, nil
	}
	set, r, err := p.escape()
	if err != nil {
		return nil, err
	}
	if set != nil {
		return &node{kind: one, set: set}, nil
	}
	return p.literal(r)
}

// class takes a class in brackets.
func (p *parser) class() (*node, error) {
	if p.fold {
		return nil, errors.New("a class without case")
	}
	p.take("[")
	negated := p.take("^")
	var sets []*ucd.Set
	for first := true; ; first = false {
		if p.rest == "" {
			return nil, errors.New("a [ without its ]")
		}
		if !first && p.take("]") {
			break
		}
		set, lo, err := p.member(first)
		if err != nil {
			return nil, err
		}
		if set != nil {
			if len(p.rest) > 1 && p.rest[0] == '-' && p.rest[1] != ']' {
				return nil, errors.New("a - after a class, want it escaped")
			}
			sets = append(sets, set)
			continue
		}
		hi := lo
		if len(p.rest) > 1 && p.rest[0] == '-' && p.rest[1] != ']' {
			p.next()
			if set, hi, err = p.member(false); err != nil {
				return nil, err
			}
			if set != nil || hi < lo {
				return nil, fmt.Errorf("a range from %q to a class or downwards", lo)
			}
		}
		sets = append(sets, ucd.Range(lo, hi))
	}
	set := ucd.Union(sets...)
	if negated {
		set = set.Complement()
	}
	return &node{kind: one, set: set}, nil
}

// superscripts are ² ³ ¹ ¼ ½ ¾, which Oniguruma counts as characters of words, but not in classes.
var superscripts = ucd.Union(ucd.Range(0xB2, 0xB3), ucd.Range(0xB9, 0xB9), ucd.Range(0xBC, 0xBE))

// member takes one code point or set of a class.
func (p *parser) member(first bool) (*ucd.Set, rune, error) {
	switch {
	case p.rest == "":
		return nil, 0, errors.New("a [ without its ]")
	case strings.HasPrefix(p.rest, `\w`):
		set, r, err := p.escape()
		return ucd.Union(set.Complement(), superscripts).Complement(), r, err
	case strings.HasPrefix(p.rest, `\W`):
		set, r, err := p.escape()
		return ucd.Union(set, superscripts), r, err
	case p.rest[0] == '\\':
		return p.escape()
	case p.rest[0] == '[' || p.rest[0] == ']' && first:
		return nil, 0, fmt.Errorf("%c in a class, want it escaped", p.rest[0])
	case strings.HasPrefix(p.rest, "&&"):
		return nil, 0, errors.New("&& in a class")
	}
	return nil, p.next(), nil
}
