package jinja

import (
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type kind int

const (
	end kind = iota
	data
	beginPrint
	endPrint
	beginTag
	endTag
	name
	text
	whole
	real
	operator
)

type token struct {
	kind kind
	text string
	line int
}

// Of the templates' operators the longest matches.
var operators = []string{"//", "**", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", ".", ",", ":", "|", "(", ")", "[", "]", "{", "}"}

var (
	number   = regexp.MustCompile(`^[0-9](_?[0-9])*(\.[0-9](_?[0-9])*)?([eE][+-]?[0-9](_?[0-9])*)?`)
	digits   = regexp.MustCompile(`^[0-9](_?[0-9])*`)
	hex      = regexp.MustCompile(`^0[xX][0-9a-fA-F]+`)
	beginRaw = regexp.MustCompile(`^\{%[-+]?\s*raw\s*(-%\}\s*|%\})`)
	endRaw   = regexp.MustCompile(`\{%([-+]?)\s*endraw\s*(\+%\}|-%\}\s*|%\}\n?)`)
)

type lexer struct {
	rest   string
	tokens []token
	line   int
	fresh  bool // the line begins here
}

// lex cuts a template into tokens.
func lex(template string) []token {
	template = strings.ReplaceAll(strings.ReplaceAll(template, "\r\n", "\n"), "\r", "\n")
	l := &lexer{rest: strings.TrimSuffix(template, "\n"), line: 1, fresh: true}
	for l.rest != "" {
		at := 0
		for at < len(l.rest) && !(l.rest[at] == '{' && at+1 < len(l.rest) && strings.IndexByte("{%#", l.rest[at+1]) >= 0) {
			at++
		}
		before := l.rest[:at]
		if at == len(l.rest) {
			l.add(data, before)
			l.take(at)
			break
		}
		l.tag(before, at)
	}
	l.add(end, "")
	return l.tokens
}

// tag reads what begins at a place of rest, after a text.
func (l *lexer) tag(before string, at int) {
	opening := l.rest[at : at+2]
	sign := byte(0)
	if at+2 < len(l.rest) {
		sign = l.rest[at+2]
	}
	line := strings.LastIndexByte(before, '\n') + 1
	switch {
	case sign == '-':
		before = strings.TrimRightFunc(before, space)
	case sign != '+' && opening != "{{" && (line > 0 || l.fresh) && strings.TrimLeftFunc(before[line:], space) == "":
		before = before[:line]
	}
	if before != "" {
		l.add(data, before)
	}
	l.take(at)
	if m := beginRaw.FindString(l.rest); m != "" {
		l.take(len(m))
		l.raw()
		return
	}
	signed := 2
	if sign == '-' || sign == '+' {
		signed = 3
	}
	switch opening {
	case "{#":
		i := strings.Index(l.rest[2:], "#}")
		if i < 0 {
			failAt(l.line, "a comment has no end")
		}
		sign := l.rest[2+i-1]
		l.take(2 + i)
		l.close("#}", sign == '-', sign != '+' && sign != '-')
	case "{{":
		l.add(beginPrint, "")
		l.take(signed)
		l.inside("}}", endPrint)
	default:
		l.add(beginTag, "")
		l.take(signed)
		l.inside("%}", endTag)
	}
}

// raw reads to the end of a raw tag.
func (l *lexer) raw() {
	m := endRaw.FindStringSubmatchIndex(l.rest)
	if m == nil {
		failAt(l.line, "the tag raw has no end")
	}
	body := l.rest[:m[0]]
	if l.rest[m[2]:m[3]] == "-" {
		body = strings.TrimRightFunc(body, space)
	} else if line := strings.LastIndexByte(body, '\n') + 1; m[2] == m[3] && line > 0 && strings.TrimLeftFunc(body[line:], space) == "" {
		body = body[:line]
	}
	l.add(data, body)
	l.take(m[1])
	l.fresh = strings.HasSuffix(l.tokens[len(l.tokens)-1].text, "\n")
}

// close takes the end of a tag and the white space that goes with it.
func (l *lexer) close(closing string, strip, newline bool) {
	l.take(len(closing))
	switch {
	case strip:
		rest := strings.TrimLeftFunc(l.rest, space)
		l.take(len(l.rest) - len(rest))
	case newline && strings.HasPrefix(l.rest, "\n"):
		l.take(1)
	}
}

// inside reads the tokens of a tag.
func (l *lexer) inside(closing string, as kind) {
	depth := 0
	for {
		l.rest, l.line = l.skip()
		switch sign := strings.TrimPrefix(strings.TrimPrefix(l.rest, "-"), "+"); {
		case l.rest == "":
			failAt(l.line, "a tag has no end %s", closing)
		case depth == 0 && strings.HasPrefix(sign, closing) && len(l.rest)-len(sign) <= 1 && !(closing == "}}" && l.rest[0] == '+'):
			strip, kept := l.rest[0] == '-', l.rest[0] == '+'
			l.take(len(l.rest) - len(sign))
			l.add(as, "")
			l.close(closing, strip, closing == "%}" && !strip && !kept)
			return
		}
		size := l.one()
		switch l.tokens[len(l.tokens)-1] {
		case token{operator, "(", l.line}, token{operator, "[", l.line}, token{operator, "{", l.line}:
			depth++
		case token{operator, ")", l.line}, token{operator, "]", l.line}, token{operator, "}", l.line}:
			depth--
		}
		l.take(size)
	}
}

// skip returns rest without white space in front, and its line.
func (l *lexer) skip() (rest string, line int) {
	rest = strings.TrimLeftFunc(l.rest, space)
	return rest, l.line + strings.Count(l.rest[:len(l.rest)-len(rest)], "\n")
}

// one adds the token in front and returns its size.
func (l *lexer) one() (size int) {
	r, _ := utf8.DecodeRuneInString(l.rest)
	switch {
	case r == '"' || r == '\'':
		return l.quoted(byte(r))
	case hex.MatchString(l.rest):
		m := hex.FindString(l.rest)
		l.add(whole, m)
		return len(m)
	case r >= '0' && r <= '9':
		m := number.FindString(l.rest)
		if n := len(l.tokens); n > 0 && l.tokens[n-1].kind == operator && l.tokens[n-1].text == "." {
			m = digits.FindString(l.rest) // m.0.1 has the numbers 0 and 1
		}
		if digits := strings.ReplaceAll(m, "_", ""); strings.ContainsAny(m, ".eE") {
			l.add(real, digits)
		} else {
			l.add(whole, digits)
		}
		return len(m)
	case r == '_' || unicode.IsLetter(r):
		size = strings.IndexFunc(l.rest, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
		if size < 0 {
			size = len(l.rest)
		}
		l.add(name, l.rest[:size])
		return size
	}
	for _, op := range operators {
		if strings.HasPrefix(l.rest, op) {
			l.add(operator, op)
			return len(op)
		}
	}
	failAt(l.line, "the character %q is not known", r)
	return 0
}

// quoted adds a text with the escapes of Python.
func (l *lexer) quoted(quote byte) (size int) {
	var b strings.Builder
	simple := map[byte]string{'n': "\n", 't': "\t", 'r': "\r", 'b': "\b", 'f': "\f", 'v': "\v", 'a': "\a", '\\': "\\", '\'': "'", '"': "\"", '\n': ""}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}
	for i := 1; i < len(l.rest); i++ {
		c := l.rest[i]
		if c == quote {
			l.add(text, b.String())
			return i + 1
		}
		if c != '\\' || i+1 == len(l.rest) {
			b.WriteByte(c)
			continue
		}
		i++
		c = l.rest[i]
		if s, found := simple[c]; found {
			b.WriteString(s)
		} else if n := digits[c]; n > 0 {
			if i+n >= len(l.rest) {
				break
			}
			code, err := strconv.ParseUint(l.rest[i+1:i+1+n], 16, 32)
			if err != nil {
				failAt(l.line, "a text has the escape \\%c without %d digits", c, n)
			}
			b.WriteRune(rune(code))
			i += n
		} else {
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	failAt(l.line, "a text has no end")
	return 0
}

func (l *lexer) add(k kind, s string) {
	if len(l.tokens) == maxTokens {
		fail("the template has more than %d parts", maxTokens)
	}
	l.tokens = append(l.tokens, token{k, s, l.line})
}

// take drops the front of rest.
func (l *lexer) take(n int) {
	l.line += strings.Count(l.rest[:n], "\n")
	if n > 0 {
		l.fresh = l.rest[n-1] == '\n'
	}
	l.rest = l.rest[n:]
}

// space reports whether Python strips a character.
func space(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }
