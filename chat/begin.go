package chat

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
)

// prompt is how a conversation goes on with the generation prompt.
type prompt struct {
	added string // what the generation prompt adds
	tail  string // all that follows the last message's content
	of    int    // the message that it asks for
	known bool
}

// promptAfter returns how the first n messages go on.
func (l *labeler) promptAfter(n int) (p prompt) {
	m := marker{how: l.how, skip: func(i int) bool { return !l.known[i] }}
	c := l.c
	c.Messages = m.messages(c.Messages[:n])
	plain, hits, err := l.t.unmarked(c, true)
	if err != nil {
		return p
	}
	at := 0
	for _, x := range places(plain, hits, m.parts, l.how) {
		at = max(at, x.end)
	}
	p = prompt{tail: plain[at:], of: n, known: true}
	if p.added = l.t.traits().added; p.added != "" && strings.HasSuffix(p.tail, p.added) {
		return p
	}
	p.added = ""
	if other, _, err := l.t.unmarked(c, false); err == nil {
		p.added = plain[max(at, whole(plain, commonPrefix(plain, other))):]
	}
	return p
}

// maxRoles is how many roles before answers have a prompt of their own.
const maxRoles = 6

// findPrompts renders the beginnings of the conversation up to the last answer after each role.
func (l *labeler) findPrompts() {
	l.prompts = map[asking]prompt{}
	for i := len(l.c.Messages) - 1; i > 0; i-- {
		if l.c.Messages[i].Role != "assistant" {
			continue
		}
		key := l.before(i)
		if _, done := l.prompts[key]; !done && len(l.prompts) < maxRoles {
			l.prompts[key] = l.promptAfter(i)
		}
	}
}

// asking is what stands before an answer.
type asking struct {
	role    string
	written bool // the text has something of it
}

// before returns what stands before message i.
func (l *labeler) before(i int) asking {
	return asking{l.c.Messages[i-1].Role, l.first[i-1] >= 0}
}

// maxOwn is how many answers have a prompt of their own where the text goes on otherwise than after the last such message.
const maxOwn = 8

// numbers are what templates count: turns, calls and lengths.
var numbers = regexp.MustCompile(`\d+`)

// asked returns the prompt before message i, which is the given one if the text from p on has it. It may differ in the names
// and ids of the message before, and in numbers.
func (l *labeler) asked(i, p int, usual prompt) prompt {
	if !usual.known || l.first[i-1] >= 0 && strings.HasPrefix(l.text[p:], usual.tail) {
		return usual
	}
	if usual.of != i {
		var pairs []string
		for _, f := range l.c.Messages[usual.of-1].Fields {
			old, _ := f.Value.(string)
			if now, ok := fieldOf[string](l.c.Messages[i-1].Fields, f.Name); ok && old != "" && old != now {
				pairs = append(pairs, old, now)
			}
		}
		if tail := strings.NewReplacer(pairs...).Replace(usual.tail); l.first[i-1] >= 0 && strings.HasPrefix(l.text[p:], tail) {
			usual.tail, usual.of = tail, i
			return usual
		}
	}
	if usual.of != i && l.own < maxOwn {
		l.own++
		if own := l.promptAfter(i); own.known {
			usual = own
			if l.first[i-1] < 0 || strings.HasPrefix(l.text[p:], own.tail) {
				return own
			}
		}
	}
	if l.first[i-1] >= 0 && numbers.MatchString(usual.tail) {
		like := regexp.MustCompile("^" + numbers.ReplaceAllString(regexp.QuoteMeta(usual.tail), `\d+`))
		if tail := like.FindString(l.text[p:]); tail != "" {
			added := regexp.MustCompile(numbers.ReplaceAllString(regexp.QuoteMeta(usual.added), `\d+`) + "$")
			usual.tail, usual.added, usual.of = tail, added.FindString(tail), i
		}
	}
	return usual
}

// start returns where the text of message i begins, with the white space in front of it.
func (l *labeler) start(i int) int {
	p := l.places[l.first[i]]
	return len(strings.TrimSuffix(l.text[:p.begin], l.parts[p.part].before))
}

// begin returns where the generation prompt ends in the text from p on, if that is before limit or the message's text
// goes on as the prompt.
func (l *labeler) begin(i, p, limit, done int) (at int, ok bool) {
	if i == 0 {
		return l.beginFirst(limit)
	}
	role := l.c.Messages[i-1].Role
	asked, usual := l.prompts[l.before(i)], l.usual()
	if role == "assistant" {
		asked = l.asked(i, p, asked)
		if at := p + len(asked.tail); asked.known && l.first[i-1] >= 0 && at <= limit && strings.HasPrefix(l.text[p:], asked.tail) {
			if usual != "" && at >= done && numbers.ReplaceAllString(asked.added, "") == numbers.ReplaceAllString(usual, "") {
				return at, true
			}
			p = max(p, at-len(asked.added))
		}
		p = max(p, done)
		asked = prompt{added: usual}
	} else if asked = l.asked(i, p, asked); asked.of != i && l.first[i-1] < 0 && l.first[i] < 0 {
		return p, false // nothing tells which of the turns without a text it is
	}
	rest, start := l.text[p:], limit
	if l.first[i] >= 0 {
		start = max(p, l.start(i))
	}
	index := strings.Index
	if role == "assistant" && !l.hasTurn(i-1) || l.first[i] >= 0 && l.first[i-1] < 0 { // a header of the message before may be there
		rest, index = l.text[p:max(p, limit)], strings.LastIndex
	}
	if asked.known && strings.HasPrefix(rest, asked.tail) {
		at = p + len(asked.tail)
		before := l.text[at:max(at, limit)]
		if end, _ := l.endIn(before); l.first[i] < 0 && end >= 0 { // the next header is behind the end
			before = before[:end]
		}
		if asked.added == "" && before != "" && l.header(asked.tail) == "" && l.hasHeader(i, before) {
			l.noteHeader(i, before)
		}
		return at, true
	}
	for _, added := range []string{asked.added, usual, strings.TrimFunc(asked.added, isSpace), strings.TrimFunc(usual, isSpace)} {
		if added == "" {
			continue
		}
		if j := index(rest, added); j >= 0 && (p+j < start || p+j == limit && l.first[i] < 0) {
			return p + j + len(added), true
		}
	}
	if asked.known { // the text and the prompt part
		k := whole(asked.tail, commonPrefix(asked.tail, rest))
		from := len(asked.tail) - len(asked.added)
		if k > from && strings.TrimFunc(asked.tail[from:k], isSpace) != "" || asked.added == "" && k > 0 && p+k <= limit {
			at = p + k
			if l.first[i] >= 0 {
				if both := strings.TrimFunc(l.text[min(start, at):at], isSpace); both != "" && !strings.ContainsAny(both[len(both)-1:], ">]") {
					at = start // words of the answer are no prompt; tags, such as <think>, are
				}
			}
			return at, true
		}
	}
	for _, added := range []string{asked.added, usual} { // or the text has the front of the prompt
		for k := len(added) - 1; k > 1; k-- {
			if k = whole(added, k); k < 2 || strings.TrimFunc(added[:k], isSpace) == "" {
				break
			}
			if j := index(l.text[p:max(p, limit)], added[:k]); j >= 0 {
				return p + j + k, true
			}
		}
	}
	return p, role == "assistant" && (done > 0 || l.first[i-1] >= 0)
}

// usual returns the generation prompt after a question. A template may write it in any case.
func (l *labeler) usual() string {
	asked := l.prompts[asking{"user", true}]
	return cmp.Or(asked.added, l.t.traits().added, l.header(asked.tail), l.header(l.t.traits().tail))
}

// header returns what follows the first end of a turn in the tail of a prompt, unless it is white space.
func (l *labeler) header(tail string) string {
	at, size := l.endIn(tail)
	if rest := tail[max(at, 0)+size:]; at >= 0 && strings.TrimFunc(rest, isSpace) != "" {
		return rest
	} else if at >= 0 {
		return ""
	}
	return strings.TrimFunc(tail, isSpace)
}

// noteHeader notes that the label of message i begins with its header.
func (l *labeler) noteHeader(i int, header string) {
	l.note(i, Header, "the chat template writes no generation prompt before %s, so that the model learns to write its header %s", l.who(i), quoted(header))
}

// hasHeader reports whether a special token before the text of message i is a header. What begins a call of functions is
// none, unless turns begin with it.
func (l *labeler) hasHeader(i int, before string) bool {
	tokens := l.t.tokensIn(before)
	if len(tokens) == 0 || l.first[i] < 0 {
		return len(tokens) > 0
	}
	name := l.parts[l.places[l.first[i]].part].name
	isCall := slices.ContainsFunc(calls, func(field string) bool { return strings.HasPrefix(name, field) })
	return !isCall || slices.Contains(l.t.traits().headers, tokens[0])
}

// beginFirst is begin for an answer before which there is no message.
func (l *labeler) beginFirst(limit int) (at int, ok bool) {
	added := l.usual()
	c := l.c
	c.Messages = nil
	if text, err := l.t.plain(c, true); err == nil && text != "" && added != "" && strings.HasSuffix(text, added) && strings.HasPrefix(l.text, text) {
		return len(text), true
	}
	if j := strings.Index(l.text, added); added != "" && j >= 0 && j <= limit {
		return j + len(added), true
	}
	// After a question the model writes what is between the prompt and the content.
	if probe, err := l.probe([]Message{{Role: "user", Content: "question"}, l.c.Messages[0]}); err == nil {
		probe.findPrompts()
		if probe.first[0] >= 0 && probe.first[1] >= 0 {
			first := probe.places[probe.first[1]].begin
			if at, ok := probe.begin(1, probe.places[probe.last[0]].end, first, 0); ok && at <= first && strings.HasSuffix(l.text[:limit], probe.text[at:first]) {
				for _, n := range probe.notes {
					if n.Kind == Header {
						l.noteHeader(0, probe.text[at:first])
					}
				}
				return limit - (first - at), true
			}
		}
	}
	return 0, false
}
