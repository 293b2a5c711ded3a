package chat

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// traits are what a template does with any conversation.
type traits struct {
	added   string   // the generation prompt
	tail    string   // all that follows the question, with the generation prompt
	headers []string // special tokens with which turns begin
	inner   []string // special tokens between the generation prompt and the content of an answer
}

// traits returns what a template does with a lone question.
func (t *Template) traits() traits {
	t.once.Do(func() {
		m := marker{}
		c, _, _, err := t.settle(Conversation{Messages: []Message{{Role: "user", Content: "question"}}}, false)
		if err != nil {
			return
		}
		c.Messages = m.messages(c.Messages)
		plain, hits, err := t.unmarked(c, true)
		if err != nil {
			return
		}
		other, _, err := t.unmarked(c, false)
		if err != nil {
			return
		}
		t.learned.added = plain[whole(plain, commonPrefix(plain, other)):]
		t.learned.headers = t.tokensIn(t.learned.added)
		if bos, ok := t.names["bos_token"].(string); ok && !slices.Contains(t.ends, bos) {
			t.learned.headers = append(t.learned.headers, bos)
		}
		if len(hits) > 0 {
			t.learned.tail = plain[hits[len(hits)-1].at:]
			// The last token before the question begins its turn, unless it ends turns.
			before, behind := t.tokensIn(plain[:hits[0].at]), t.tokensIn(other[min(len(other), hits[len(hits)-1].at):])
			if n := len(before); n > 0 && (len(behind) == 0 || behind[0] != before[n-1]) {
				t.learned.headers = append(t.learned.headers, before[n-1])
			}
		}
		t.learned.inner = t.innerTokens()
	})
	return t.learned
}

// innerTokens returns the special tokens that a template writes between its generation prompt and the content of an answer.
func (t *Template) innerTokens() []string {
	c, _, _, err := t.settle(Conversation{Messages: []Message{{Role: "user", Content: "question"}, {Role: "assistant", Content: "answer"}}}, false)
	if err != nil || t.learned.added == "" {
		return nil
	}
	m := marker{}
	c.Messages = m.messages(c.Messages)
	text, hits, err := t.unmarked(c, false)
	if err != nil || len(hits) != 4 || hits[2].number != 2 { // both contents, once each
		return nil
	}
	_, before, _ := strings.Cut(text[hits[1].at:hits[2].at], t.learned.added)
	behind := t.tokensIn(text[hits[3].at:])
	return slices.DeleteFunc(t.tokensIn(before), func(token string) bool { return slices.Contains(behind, token) })
}

// tokensIn returns the special tokens in a text, in their order.
func (t *Template) tokensIn(text string) (list []string) {
	for at := 0; at < len(text); {
		token := t.tokenAt(text[at:])
		if token == "" {
			at++
			continue
		}
		list = append(list, token)
		at += len(token)
	}
	return list
}

// tokenAt returns the longest special token with which a text begins.
func (t *Template) tokenAt(text string) (longest string) {
	if text == "" || !t.starts[text[0]] {
		return ""
	}
	for _, s := range t.special {
		if len(s) > len(longest) && strings.HasPrefix(text, s) {
			longest = s
		}
	}
	return longest
}

// whole returns the largest k, up to the given one, at which no tag and no word of a text is cut.
func whole(text string, k int) int {
	if k >= len(text) {
		return len(text)
	}
	if i := strings.LastIndexAny(text[:k], "<["); i >= 0 && !strings.ContainsAny(text[i:k], ">] \n") {
		k = i
	}
	word := func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' }
	for k > 0 {
		before, size := utf8.DecodeLastRuneInString(text[:k])
		if after, _ := utf8.DecodeRuneInString(text[k:]); !word(before) || !word(after) {
			break
		}
		k -= size
	}
	return k
}

// find finds the turns.
func (l *labeler) find() {
	l.findPrompts()
	done := 0 // where the turn before ends
	before := 0
	for i, m := range l.c.Messages {
		if m.Role != "assistant" {
			if l.last[i] >= 0 {
				before = max(before, l.places[l.last[i]].end)
			}
			continue
		}
		p, first, last, bound := before, -1, -1, len(l.text)
		if l.first[i] >= 0 {
			p, first, last = l.ahead[l.first[i]], l.places[l.first[i]].begin, l.places[l.last[i]].end
			if l.last[i]+1 < len(l.places) {
				bound = l.places[l.last[i]+1].begin
			}
			before = max(before, last)
		} else {
			if !l.known[i] || l.hasText(i) {
				continue // it is left out, or nobody knows where it is
			}
			bound = l.next[i]
		}
		turn, ok := l.turn(i, p, first, last, bound, done)
		if n := len(l.turns); !ok || n > 0 && turn.Begin < l.turns[n-1].End && turn.End > l.turns[n-1].Begin {
			continue // a text is of one turn
		}
		l.turns = append(l.turns, turn)
		done = turn.End
	}
	slices.SortStableFunc(l.turns, func(a, b Turn) int { return a.Begin - b.Begin })
}

// hasTurn reports whether the last turn is that of a message.
func (l *labeler) hasTurn(i int) bool {
	return len(l.turns) > 0 && l.turns[len(l.turns)-1].Message == i
}

// partsOf returns the range of the parts of a message.
func (l *labeler) partsOf(i int) (lo, hi int) {
	of := func(p part, i int) int { return p.message - i }
	lo, _ = slices.BinarySearchFunc(l.parts, i, of)
	hi, _ = slices.BinarySearchFunc(l.parts, i+1, of)
	return lo, hi
}

// hasText reports whether a message has a text.
func (l *labeler) hasText(i int) bool {
	lo, hi := l.partsOf(i)
	return lo < hi
}

// turn returns the turn of message i, whose places are from first to last, or nowhere if they are negative. What is
// before it ends at p, the turn before ends at done, and the next message begins at bound.
func (l *labeler) turn(i, p, first, last, bound, done int) (x Turn, ok bool) {
	limit := first
	if first < 0 {
		limit = bound
	}
	x = Turn{Message: i}
	if x.Begin, ok = l.begin(i, p, limit, done); !ok {
		if first < 0 {
			return x, false
		}
		x.Begin = max(l.start(i), done)
	}
	if last < 0 {
		last = x.Begin
	}
	x.End, x.Ended = l.end(i, max(last, x.Begin), max(bound, last, x.Begin))
	return x, true
}

// end returns where the turn of message i ends, whose text ends at last, before bound.
func (l *labeler) end(i, last, bound int) (at int, ended bool) {
	rest := l.text[last:bound]
	if added := l.t.traits().added; strings.TrimFunc(added, isSpace) != "" {
		if j := strings.Index(rest, added); j >= 0 {
			rest = rest[:j]
		}
	}
	if !l.c.Messages[i].callsFunctions() || l.first[i] < 0 {
		if j, size := l.endIn(rest); j >= 0 {
			return last + j + size, true
		}
		return last, false
	}
	// A token within the calls, such as a quotation mark, ends none of them.
	inner := l.t.tokensIn(l.text[l.places[l.first[i]].begin:last])
	if j, size := l.endIn(rest, inner...); j >= 0 && (len(inner) == 0 || slices.Contains(l.t.ends, rest[j:j+size])) {
		return last + j + size, true
	} else if written := l.closing(i, rest, bound); j < 0 || written != "" && j+size > len(written) {
		tokens := l.t.tokensIn(written)
		return last + len(written), len(tokens) > 0 && strings.HasSuffix(written, tokens[len(tokens)-1])
	} else {
		return last + j + size, true
	}
}

// closing returns what a template writes behind the last call of functions of message i, without an end of the turn: what
// the conversation that ends there has, too. rest is the text up to bound, where the next message begins.
func (l *labeler) closing(i int, rest string, bound int) string {
	if bound == len(l.text) {
		return strings.TrimRightFunc(rest, isSpace)
	}
	if l.closed == "" || !strings.HasPrefix(rest, l.closed) {
		probe, err := l.probe(l.c.Messages[:i+1])
		if err != nil || probe.first[i] < 0 {
			return ""
		}
		tail := strings.TrimRightFunc(probe.text[probe.places[probe.last[i]].end:], isSpace)
		l.closed = tail[:whole(tail, commonPrefix(tail, rest))]
	}
	return l.closed
}

// endIn returns where the first end of a turn is in a text, and its size: the first of the ends, or else the first special
// token with which neither a turn nor its content begins, and that is not among others.
func (l *labeler) endIn(text string, others ...string) (at, size int) {
	at = -1
	for _, end := range l.t.ends {
		if j := strings.Index(text, end); j >= 0 && (at < 0 || j < at || j == at && len(end) > size) {
			at, size = j, len(end)
		}
	}
	if at >= 0 {
		return at, size
	}
	traits := l.t.traits()
	for j := range len(text) {
		if token := l.t.tokenAt(text[j:]); token != "" && !slices.Contains(traits.headers, token) && !slices.Contains(traits.inner, token) && !slices.Contains(others, token) {
			return j, len(token)
		}
	}
	return -1, 0
}

// addEnd appends the end of the last turn, if the template writes one only where a message follows.
func (l *labeler) addEnd() {
	n := len(l.c.Messages)
	if len(l.turns) == 0 {
		return
	}
	x := &l.turns[len(l.turns)-1]
	if x.Ended || x.Message != n-1 || strings.TrimFunc(l.text[x.End:], isSpace) != "" {
		return
	}
	next := Message{Role: "user", Content: "question"}
	if slices.ContainsFunc(l.c.Messages[n-1].Fields, func(f Field) bool { return f.Name == "tool_calls" }) {
		next.Role = "tool"
	}
	probe, err := l.probe(append(slices.Clone(l.c.Messages), next))
	if err != nil || probe.first[n-1] < 0 || probe.first[n] < 0 {
		return
	}
	last, bound := probe.places[probe.last[n-1]].end, probe.places[probe.first[n]].begin
	if bound < last {
		return
	}
	at, size := l.endIn(probe.text[last:bound])
	if at < 0 {
		return
	}
	written := l.text[l.places[l.last[n-1]].end:]
	rest, ok := strings.CutPrefix(probe.text[last:last+at+size], written)
	if !ok {
		return
	}
	l.text += rest
	x.End, x.Ended = len(l.text), true
	l.note(n-1, AddedEnd, "the chat template writes %s after an answer only if a message follows; it is added to the last one", quoted(strings.TrimFunc(rest, isSpace)))
}
