package chat

import (
	"cmp"
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
		with, err := t.plain(c, true)
		if err != nil {
			return
		}
		without, err := t.plain(c, false)
		if err != nil {
			return
		}
		plain, hits := unmark(with)
		other, _ := unmark(without)
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
	text, err := t.plain(c, false)
	if err != nil {
		return nil
	}
	text, hits := unmark(text)
	if len(hits) != 4 || hits[2].number != 2 { // both contents, once each
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

// prompt is how a conversation goes on with the generation prompt.
type prompt struct {
	added string // what the generation prompt adds
	tail  string // all that follows the last message's content
	known bool
}

// promptAfter returns how the first n messages go on.
func (l *labeler) promptAfter(n int) (p prompt) {
	m := marker{how: l.how, skip: func(i int) bool { return !l.known[i] }}
	c := l.c
	c.Messages = m.messages(c.Messages[:n])
	with, err := l.t.plain(c, true)
	if err != nil {
		return p
	}
	plain, hits := unmark(with)
	at := 0
	for _, x := range places(plain, hits, m.parts, l.how) {
		at = max(at, x.end)
	}
	p = prompt{tail: plain[at:], known: true}
	if p.added = l.t.traits().added; p.added != "" && strings.HasSuffix(p.tail, p.added) {
		return p
	}
	p.added = ""
	if without, err := l.t.plain(c, false); err == nil {
		other, _ := unmark(without)
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
		if !ok {
			continue
		}
		l.turns = append(l.turns, turn)
		done = turn.End
	}
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
		x.Begin = max(first, done)
	}
	if last < 0 {
		last = x.Begin
	}
	x.End, x.Ended = l.end(i, max(last, x.Begin), max(bound, last, x.Begin))
	return x, true
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
		p = max(p, done)
		asked = prompt{added: usual}
	}
	rest := l.text[p:]
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
			l.note(i, Header, "the chat template writes no generation prompt before %s, so that the model learns to write its header %s", l.who(i), quoted(before))
		}
		return at, true
	}
	for _, added := range []string{asked.added, usual, strings.TrimFunc(asked.added, isSpace), strings.TrimFunc(usual, isSpace)} {
		if added == "" {
			continue
		}
		if j := index(rest, added); j >= 0 && p+j <= limit {
			return p + j + len(added), true
		}
	}
	if asked.known { // the text and the prompt part
		k := whole(asked.tail, commonPrefix(asked.tail, rest))
		from := len(asked.tail) - len(asked.added)
		if k > from && strings.TrimFunc(asked.tail[from:k], isSpace) != "" || asked.added == "" && k > 0 && p+k <= limit {
			return p + k, true
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
	probe := &labeler{t: l.t, c: l.c}
	probe.c.Messages = append([]Message{{Role: "user", Content: "question"}}, l.c.Messages[0])
	var err error
	if probe.text, err = l.t.plain(probe.c, false); err == nil {
		probe.locate()
		probe.findPrompts()
		if probe.first[0] >= 0 && probe.first[1] >= 0 {
			first := probe.places[probe.first[1]].begin
			if at, ok := probe.begin(1, probe.places[probe.last[0]].end, first, 0); ok && at <= first && strings.HasSuffix(l.text[:limit], probe.text[at:first]) {
				return limit - (first - at), true
			}
		}
	}
	return 0, false
}

// end returns where the turn of message i ends, whose text ends at last, before bound.
func (l *labeler) end(i, last, bound int) (at int, ended bool) {
	rest := l.text[last:bound]
	if added := l.t.traits().added; strings.TrimFunc(added, isSpace) != "" {
		if j := strings.Index(rest, added); j >= 0 {
			rest = rest[:j]
		}
	}
	if j, size := l.endIn(rest); j >= 0 {
		return last + j + size, true
	}
	if l.c.Messages[i].callsFunctions() {
		return last + len(l.closing(i, rest, bound)), false
	}
	return last, false
}

// closing returns what a template writes behind the last call of functions of message i, without an end of the turn: what
// the conversation that ends there has, too. rest is the text up to bound, where the next message begins.
func (l *labeler) closing(i int, rest string, bound int) string {
	if bound == len(l.text) {
		return strings.TrimRightFunc(rest, isSpace)
	}
	if l.closed == "" || !strings.HasPrefix(rest, l.closed) {
		probe := &labeler{t: l.t, c: l.c}
		probe.c.Messages = l.c.Messages[:i+1]
		var err error
		if probe.text, err = l.t.plain(probe.c, false); err != nil {
			return ""
		}
		if probe.locate(); probe.first[i] < 0 {
			return ""
		}
		tail := strings.TrimRightFunc(probe.text[probe.places[probe.last[i]].end:], isSpace)
		l.closed = tail[:whole(tail, commonPrefix(tail, rest))]
	}
	return l.closed
}

// endIn returns where the first end of a turn is in a text, and its size: the first of the ends, or else the first special
// token with which neither a turn nor its content begins.
func (l *labeler) endIn(text string) (at, size int) {
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
		if token := l.t.tokenAt(text[j:]); token != "" && !slices.Contains(traits.headers, token) && !slices.Contains(traits.inner, token) {
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
	probe := &labeler{t: l.t, c: l.c}
	probe.c.Messages = append(slices.Clone(l.c.Messages), next)
	var err error
	if probe.text, err = l.t.plain(probe.c, false); err != nil {
		return
	}
	probe.locate()
	if probe.first[n-1] < 0 || probe.first[n] < 0 {
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
