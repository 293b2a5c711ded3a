package chat

import (
	"fmt"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/jinja"
)

// Labeled is a rendered conversation with what is learned of it.
type Labeled struct {
	Text  string
	Turns []Turn // in the order of Text; they do not overlap
	Notes []Note // what the template leaves out, rewrites or cannot express
}

// Turn is what an assistant's message adds to the text: all that the model writes after the generation prompt, through
// the token that ends the turn.
type Turn struct {
	Message    int  // its number, from 0
	Begin, End int  // bytes of Text
	Ended      bool // its last bytes are a token that ends the turn
}

// Note says that the text does not have what the conversation has, or not in a form from which the model learns to stop.
type Note struct {
	Message int // its number, or -1 for the conversation
	Kind    NoteKind
	Text    string // a sentence without its full stop, such as "the chat template leaves out message 0 (system)"
}

// NoteKind says what a Note is about.
type NoteKind int

// The kinds of notes.
const (
	LeftOut   NoteKind = iota // a message, a part of one, or the tools are not in the text
	Rewritten                 // the text has a message in other words
	NoEnd                     // a turn, or every turn, has no token that ends it
	AddedEnd                  // the last turn had no end, and got the one that the template writes after others
	NoTurn                    // nothing of an assistant's message can be learned
	Header                    // the template has no generation prompt, so that the model learns to write the answer's header
)

// Label renders a conversation and finds what the assistant writes in it. The text is that of Render, unless a Note says
// AddedEnd.
//
// A turn begins where the generation prompt ends, and where the text goes on otherwise than the prompt. It ends with the
// first token that ends a turn after the last thing that the message wrote: one of Options.Ends, or else a special token
// with which the template begins no turn. White space behind it and the next header are not part of it. A template with
// {% generation %} says itself what is learned.
//
// To find the turns, the conversation is rendered again with marks in its strings, and its beginnings up to an answer with
// the generation prompt: two to ten renderings, and at most seventy where the template rewrites or tests what it is given. Their
// number does not grow with that of the messages.
//
// Errors wrap [snug.ErrConfig]: a template that refuses the conversation, or from whose text the turns cannot be told.
func (t *Template) Label(c Conversation) (Labeled, error) {
	settled, marked, made, err := t.settle(c, false)
	if err != nil {
		return Labeled{}, fmt.Errorf("chat: %w", err)
	}
	l := &labeler{t: t, c: settled}
	l.text, l.given = cutGeneration(marked)
	l.locate()
	l.find()
	if len(l.given) > 0 {
		l.take()
	} else {
		l.addEnd()
	}
	l.noteEnds()
	l.noteBehind()
	l.compare(c)
	if made {
		l.note(-1, Rewritten, "the chat template refuses the ids of the tool calls; ids of %d letters and digits, which are made, replace them", idSize)
	}
	if err := l.check(); err != nil {
		return Labeled{}, fmt.Errorf("chat: %w", err)
	}
	l.turns = slices.DeleteFunc(l.turns, func(x Turn) bool { return settled.Messages[x.Message].Untrained })
	return Labeled{Text: l.text, Turns: l.turns, Notes: l.notes}, nil
}

// labeler finds the turns of a conversation in its text.
type labeler struct {
	t       *Template
	c       Conversation
	text    string
	given   [][2]int // what {% generation %} surrounds
	how     marking
	parts   []part
	known   []bool  // by message: whether places has all that the text has of it
	places  []place // in the order of the text
	first   []int   // by message: its first place, -1 for none
	last    []int   // its last place in a row
	next    []int   // by message: where the messages after it begin
	ahead   []int   // by place: the largest end of those before it
	turns   []Turn
	notes   []Note
	prompts map[asking]prompt // by what is before an answer
	own     int               // how many answers had a prompt of their own
	closed  string            // what the last calls without an end of the turn had behind them
}

// note adds a note.
func (l *labeler) note(message int, kind NoteKind, format string, args ...any) {
	l.notes = append(l.notes, Note{message, kind, fmt.Sprintf(format, args...)})
}

// probe returns the labeler of other messages, whose parts it has located.
func (l *labeler) probe(messages []Message) (*labeler, error) {
	p := &labeler{t: l.t, c: l.c}
	p.c.Messages = messages
	var err error
	if p.text, err = l.t.plain(p.c, false); err == nil {
		p.locate()
	}
	return p, err
}

// cutGeneration returns a text without the marks of {% generation %}, and the ranges between them.
func cutGeneration(marked string) (text string, spans [][2]int) {
	var b strings.Builder
	open := -1
	for {
		i := strings.IndexAny(marked, jinja.BeginMark+jinja.EndMark)
		if i < 0 {
			break
		}
		b.WriteString(marked[:i])
		if strings.HasPrefix(marked[i:], jinja.BeginMark) {
			open = b.Len()
		} else if open >= 0 {
			spans, open = append(spans, [2]int{open, b.Len()}), -1
		}
		marked = marked[i+len(jinja.BeginMark):]
	}
	b.WriteString(marked)
	return b.String(), spans
}

// maxHalves is how often messages are marked by halves where the template writes the conversation otherwise with all marks.
const maxHalves = 16

// locate finds the parts of all messages in the text.
func (l *labeler) locate() {
	n := len(l.c.Messages)
	l.known = make([]bool, n)
	if !l.locateAll(0, n, nil) {
		for left, ranges := maxHalves, [][2]int{{0, n}}; len(ranges) > 0 && left > 0; {
			lo, hi := ranges[0][0], ranges[0][1]
			ranges = ranges[1:]
			if hi-lo < 2 {
				continue
			}
			mid := (lo + hi) / 2
			for _, half := range [][2]int{{lo, mid}, {mid, hi}} {
				if left--; !l.locateAll(half[0], half[1], l.places) {
					ranges = append(ranges, half)
				}
			}
		}
		l.search()
	}
	slices.SortStableFunc(l.places, func(a, b place) int { return a.begin - b.begin })
	l.first, l.last = slices.Repeat([]int{-1}, n), slices.Repeat([]int{-1}, n)
	l.ahead = make([]int, len(l.places))
	most := 0
	late := l.late()
	for i := 0; i < len(l.places); {
		message := l.parts[l.places[i].part].message
		j := i
		for ; j < len(l.places) && l.parts[l.places[j].part].message == message; j++ {
			l.ahead[j] = most
		}
		last := l.lastNew(i, j)
		// The longest row, and of equal ones the last that is not behind all of a later message.
		longer := last - i - (l.last[message] - l.first[message])
		if l.first[message] < 0 || longer > 0 || longer == 0 && i < late[message] {
			l.first[message], l.last[message] = i, last
		}
		for ; i < j; i++ {
			most = max(most, l.places[i].end)
		}
	}
	l.next = make([]int, n)
	next := len(l.text)
	for i := n - 1; i >= 0; i-- {
		if l.next[i] = next; l.first[i] >= 0 {
			next = l.places[l.first[i]].begin
		}
	}
}

// late returns by message the place behind which a later message has none.
func (l *labeler) late() []int {
	last := slices.Repeat([]int{len(l.places)}, len(l.c.Messages)+1)
	for i, p := range l.places {
		last[l.parts[p.part].message] = i
	}
	late := slices.Repeat([]int{len(l.places)}, len(l.c.Messages))
	for i := len(late) - 2; i >= 0; i-- {
		late[i] = min(late[i+1], last[i+1])
	}
	return late
}

// lastNew returns the last of the places from i to j-1, without names of functions that are there before. A template may
// write the name of a function again with its result.
func (l *labeler) lastNew(i, j int) (last int) {
	seen := map[int]bool{}
	for last = i; i < j; i++ {
		if n := l.places[i].part; !seen[n] || !l.parts[n].isName() {
			seen[n], last = true, i
		}
	}
	return last
}

// locateAll marks the messages from lo to hi-1 and reports whether the template then writes the same text. It adds their
// places to others.
func (l *labeler) locateAll(lo, hi int, others []place) bool {
	for _, how := range []marking{atEnds, noNames, inMiddles} {
		m := marker{how: how, skip: func(i int) bool { return i < lo || i >= hi }}
		if len(others) > 0 && how != l.how || others == nil && how == noNames && !slices.ContainsFunc(l.c.Messages, Message.callsFunctions) {
			continue // the numbers of parts differ
		}
		c := l.c
		c.Messages = m.messages(c.Messages)
		plain, hits, err := l.t.unmarked(c, false)
		if err != nil {
			continue
		}
		if plain == l.text {
			l.how, l.parts = how, m.parts
			l.places = append(others, places(l.text, hits, m.parts, how)...)
			for i := lo; i < hi; i++ {
				l.known[i] = true
			}
			return true
		}
		if l.parts == nil {
			l.parts = m.parts
		}
	}
	return false
}

// maxSearched is how many bytes are searched for the text of messages that could not be marked.
const maxSearched = 64 << 20

// search looks for the parts that could not be marked between those that were: a text that is there once.
func (l *labeler) search() {
	ends := make([]int, len(l.c.Messages)+1) // by message: where what is before it ends
	begins := slices.Repeat([]int{len(l.text)}, len(l.c.Messages)+1)
	for _, p := range l.places {
		i := l.parts[p.part].message
		ends[i+1], begins[i] = max(ends[i+1], p.end), min(begins[i], p.begin)
	}
	for i := range l.c.Messages {
		ends[i+1] = max(ends[i+1], ends[i])
		at := len(l.c.Messages) - 1 - i
		begins[at] = min(begins[at], begins[at+1])
	}
	cursor, left := 0, maxSearched
	for n, p := range l.parts {
		if l.known[p.message] {
			continue
		}
		lo, hi := max(cursor, ends[p.message]), begins[p.message+1]
		if left -= hi - lo; lo > hi || left < 0 || strings.Count(l.text[lo:hi], p.text) != 1 {
			continue
		}
		begin := lo + strings.Index(l.text[lo:hi], p.text)
		cursor = begin + len(p.text)
		l.places = append(l.places, place{part: n, begin: begin, end: cursor})
	}
}

// take takes the turns that {% generation %} surrounds. Each belongs to the message that has a part in it, or else to the
// next assistant's message. What comes before the end of the generation prompt, and white space behind the end, is left
// out, because the model does not write it.
func (l *labeler) take() {
	own := map[int]Turn{}
	for _, x := range l.turns {
		own[x.Message] = x
	}
	l.turns = nil
	next, at := 0, 0
	for _, s := range l.given {
		x := Turn{Message: -1, Begin: s[0], End: s[1]}
		for ; at < len(l.places) && l.places[at].begin < s[1]; at++ {
			if i := l.parts[l.places[at].part].message; l.places[at].end > s[0] && l.c.Messages[i].Role == "assistant" {
				x.Message = i
				break
			}
		}
		if x.Message < 0 {
			for next < len(l.c.Messages) && (l.c.Messages[next].Role != "assistant" || l.hasText(next)) {
				next++
			}
			if x.Message = next; next == len(l.c.Messages) {
				continue
			}
		}
		next = x.Message + 1
		if found, ok := own[x.Message]; ok && found.Begin < x.End && found.End > x.Begin {
			x.Begin = max(x.Begin, found.Begin)
			if found.Ended && found.End <= x.End {
				x.End, x.Ended = found.End, true
			}
		}
		l.turns = append(l.turns, x)
	}
}

// noteEnds notes turns without an end, and ends at which generation does not stop.
func (l *labeler) noteEnds() {
	without := 0
	var odd []string
	for _, x := range l.turns {
		text := l.text[x.Begin:x.End]
		if !x.Ended {
			without++
		} else if !slices.ContainsFunc(l.t.ends, func(end string) bool { return strings.HasSuffix(text, end) }) && len(l.t.ends) > 0 {
			if tokens := l.t.tokensIn(text); len(tokens) > 0 && !slices.Contains(odd, tokens[len(tokens)-1]) {
				odd = append(odd, tokens[len(tokens)-1])
			}
		}
	}
	for _, token := range odd {
		l.note(-1, NoEnd, "the chat template ends answers with %s, at which generation does not stop", token)
	}
	if without == len(l.turns) && without > 0 {
		l.note(-1, NoEnd, "no answer ends with an end token; generation will not stop")
		return
	}
	for _, x := range l.turns {
		if !x.Ended {
			l.note(x.Message, NoEnd, "the chat template writes no end of %s", l.who(x.Message))
		}
	}
}

// sentenceWords is how many words behind an answer are no end of a turn but a sentence of the template.
const sentenceWords = 8

// noteBehind notes sentences that the template writes between the last words of an answer and the end of its turn, as those
// of models that judge conversations do.
func (l *labeler) noteBehind() {
	ends := map[int][]int{} // of the places of each message
	for _, p := range l.places {
		message := l.parts[p.part].message
		ends[message] = append(ends[message], p.end)
	}
	for _, x := range l.turns {
		last := x.Begin
		for _, end := range ends[x.Message] {
			if end <= x.End {
				last = max(last, end)
			}
		}
		if behind := l.text[last:x.End]; last > x.Begin && len(strings.Fields(behind)) >= sentenceWords {
			l.note(x.Message, Rewritten, "the chat template writes behind %s, where it is learned as if it were the answer's: %s", l.who(x.Message), quoted(strings.TrimFunc(behind, isSpace)))
		}
	}
}

// compare notes what the text does not have of the conversation c, as it was given.
func (l *labeler) compare(c Conversation) {
	if len(c.Tools) > 0 {
		without := l.c
		without.Tools = nil
		if text, err := l.t.plain(without, false); err == nil && strings.HasPrefix(l.text, text) {
			l.note(-1, LeftOut, "the chat template leaves out the tools")
		}
	}
	found := make([][]place, len(l.parts))
	for _, p := range l.places {
		found[p.part] = append(found[p.part], p)
	}
	for i := range l.c.Messages {
		if l.known[i] {
			l.compareMessage(i, found)
		}
	}
}

// compareMessage notes what the text does not have of a message.
func (l *labeler) compareMessage(i int, found [][]place) {
	var lost []string
	all, written := 0, 0
	lo, hi := l.partsOf(i)
	for n := lo; n < hi; n++ {
		p := l.parts[n]
		all++
		if len(found[n]) == 0 {
			lost = append(lost, "the chat template leaves out "+p.name+" of "+l.who(i)+": "+quoted(p.text))
			continue
		}
		written++
		best := slices.MinFunc(found[n], func(a, b place) int { return len(a.lost) - len(b.lost) })
		have := strings.TrimFunc(l.text[best.begin:best.end], isSpace)
		switch {
		case best.lost != "" && l.missing(i, best):
			lost = append(lost, "the chat template leaves out a part of "+l.who(i)+": "+quoted(strings.TrimFunc(best.lost, isSpace)))
		case best.lost == "" && !same(have, p.text):
			l.note(i, Rewritten, "the chat template rewrites %s: %s becomes %s", l.who(i), quoted(p.text), quoted(have))
		}
	}
	if all > 0 && written == 0 {
		what := l.who(i)
		if m := l.c.Messages[i]; m.callsFunctions() && strings.TrimFunc(m.Content, isSpace) == "" {
			what = "the tool calls of " + what
		}
		l.note(i, LeftOut, "the chat template leaves out %s", what)
		return
	}
	for _, text := range lost {
		l.note(i, LeftOut, "%s", text)
	}
}

// missing reports whether the text lacks what a place lost of its part: words besides the tags of reasoning, which are
// not between the message before and this place.
func (l *labeler) missing(i int, p place) bool {
	words := strings.TrimFunc(strings.NewReplacer("<think>", "", "</think>", "").Replace(p.lost), isSpace)
	at := slices.Index(l.places, p)
	from, to := 0, len(l.text)
	if at >= 0 && at < len(l.ahead) {
		from = l.ahead[at]
	}
	if l.last[i] >= 0 && l.last[i]+1 < len(l.places) {
		to = max(p.end, l.places[l.last[i]+1].begin)
	}
	return !strings.Contains(l.text[min(from, to):to], words)
}

// same reports whether a text is another, also as JSON or Python escape it.
func same(have, want string) bool {
	if have == want {
		return true
	}
	for _, template := range []*jinja.Template{dumps, represents} {
		if text, err := template.Render(map[string]any{"v": want}); err == nil && len(text) > 1 && have == text[1:len(text)-1] {
			return true
		}
	}
	return false
}

// represents is a template of a value as Python writes it.
var represents, _ = jinja.Parse("{{ [v] | string | replace('[', '', 1) }}")

// noteOutside notes parts of answers that are written behind or before their turns.
func (l *labeler) noteOutside() {
	out := slices.Repeat([]bool{true}, len(l.parts)) // by part: whether no place of it is in a turn
	turns := map[int][]Turn{}
	for _, x := range l.turns {
		turns[x.Message] = append(turns[x.Message], x)
	}
	in := func(p place) bool {
		return slices.ContainsFunc(turns[l.parts[p.part].message], func(x Turn) bool { return p.begin < x.End && p.end > x.Begin })
	}
	for _, p := range l.places {
		out[p.part] = out[p.part] && !in(p)
	}
	for _, p := range l.places {
		if part := l.parts[p.part]; out[p.part] && len(turns[part.message]) > 0 && !l.c.Messages[part.message].Untrained {
			out[p.part] = false // said once
			if p.begin == p.end {
				if slices.ContainsFunc(l.notes, func(n Note) bool { return n.Message == part.message && n.Kind == LeftOut }) {
					continue
				}
				l.note(part.message, LeftOut, "the chat template leaves out %s of %s: %s", part.name, l.who(part.message), quoted(part.text))
				continue
			}
			l.note(part.message, LeftOut, "the chat template writes %s of %s outside of its turn, where it is not learned: %s", part.name, l.who(part.message), quoted(part.text))
		}
	}
}

// check returns an error if a turn has a part of another message, and notes answers without a turn.
func (l *labeler) check() error {
	at := 0
	for _, x := range l.turns {
		for ; at < len(l.places) && l.places[at].begin < x.End; at++ {
			p := l.places[at]
			if other := l.parts[p.part].message; other != x.Message && p.end > x.Begin && p.begin >= x.Begin && l.known[other] {
				return fmt.Errorf("the chat template writes %s within %s, so their tokens cannot be told apart; use a template with {%% generation %%}: %w",
					l.who(other), l.who(x.Message), snug.ErrConfig)
			}
		}
	}
	l.noteOutside()
	told := map[int]bool{}
	for _, x := range l.turns {
		told[x.Message] = true
	}
	for _, n := range l.notes {
		told[n.Message] = told[n.Message] || n.Kind == LeftOut
	}
	for i, m := range l.c.Messages {
		if m.Role == "assistant" && !m.Untrained && !told[i] {
			l.note(i, NoTurn, "the chat template writes nothing that can be learned of %s", l.who(i))
		}
	}
	return nil
}
