package dataset

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
)

// turns is a text, or the messages of a conversation.
type turns struct {
	text     *string
	messages []message
}

// UnmarshalJSON implements [json.Unmarshaler].
func (t *turns) UnmarshalJSON(b []byte) error {
	var err error
	switch b[0] {
	case '"':
		err = json.Unmarshal(b, &t.text)
	case '[':
		err = json.Unmarshal(b, &t.messages)
	default:
		return errors.New("a prompt or an answer is neither a string nor an array of messages")
	}
	if err != nil {
		return fmt.Errorf("messages: %w", readable(err))
	}
	return nil
}

// is names the content of the field: a string, messages, or nothing.
func (t *turns) is() string {
	switch {
	case t == nil || t.text == nil && t.messages == nil:
		return "nothing"
	case t.text != nil:
		return "a string"
	}
	return "messages"
}

// preference has the fields of a line with an answer that was chosen over another.
type preference struct {
	Prompt   *turns `json:"prompt"`
	Chosen   *turns `json:"chosen"`
	Rejected *turns `json:"rejected"`
	given
}

// form returns which of the forms a line has.
func (p *preference) form() (string, error) {
	prompt, chosen, rejected := p.Prompt.is(), p.Chosen.is(), p.Rejected.is()
	switch {
	case chosen == "nothing" || rejected == "nothing":
		return "", fmt.Errorf("the line has no chosen and rejected answers: %w", snug.ErrConfig)
	case chosen != rejected || prompt != "nothing" && prompt != chosen:
		return "", fmt.Errorf("prompt has %s, chosen %s and rejected %s, want all of them as strings or all as messages: %w", prompt, chosen, rejected, snug.ErrConfig)
	case prompt == "nothing" && chosen == "a string":
		return "", fmt.Errorf("chosen and rejected are strings, and want a prompt: %w", snug.ErrConfig)
	case chosen == "messages":
		return "messages", nil
	}
	return "prompt, chosen and rejected", nil
}

// preference adds a line of JSON with two answers and returns its form.
func (r *reader) preference(line []byte) (form string, err error) {
	var p preference
	if err := json.Unmarshal(line, &p); err != nil {
		return "", fmt.Errorf("%w: %w", readable(err), snug.ErrCorrupt)
	}
	if form, err = p.form(); err != nil {
		return "", err
	}
	var answers [2][]int32
	if form == "messages" {
		answers, err = r.answers(&p)
	} else {
		prompt := *p.Prompt.text
		for i, answer := range []string{*p.Chosen.text, *p.Rejected.text} {
			if answers[i], err = r.labelText(prompt+answer, span{Begin: len(prompt), End: len(prompt) + len(answer)}); err != nil {
				return "", err
			}
		}
	}
	if err == nil {
		err = labelPair(answers[0], answers[1])
	}
	if err != nil {
		return "", err
	}
	return form, r.addPair(answers[0], answers[1])
}

// answers returns the tokens of the prompt with each answer. If the line has no prompt, the messages with which both answers
// begin are the prompt.
func (r *reader) answers(p *preference) (tokens [2][]int32, err error) {
	if err := p.refuse(); err != nil {
		return tokens, err
	}
	var lists [3][]chat.Message
	for i, field := range []*turns{p.Prompt, p.Chosen, p.Rejected} {
		if field == nil {
			continue
		}
		if lists[i], err = chats(field.messages); err != nil {
			return tokens, fmt.Errorf("%s: %w", [...]string{"prompt", "chosen", "rejected"}[i], err)
		}
	}
	prompt, chosen, rejected := lists[0], lists[1], lists[2]
	if p.Prompt == nil {
		n := 0
		for n < min(len(chosen), len(rejected)) && reflect.DeepEqual(chosen[n], rejected[n]) {
			n++
		}
		prompt, chosen, rejected = chosen[:n:n], chosen[n:], rejected[n:]
	}
	if len(prompt) == 0 || len(chosen) == 0 || len(rejected) == 0 {
		return tokens, fmt.Errorf("there are %d messages of a prompt, %d chosen and %d rejected, want one or more of each: %w", len(prompt), len(chosen), len(rejected), snug.ErrConfig)
	}
	for i := range prompt {
		prompt[i].Untrained = true
	}
	for i, answer := range [][]chat.Message{chosen, rejected} {
		if tokens[i], _, err = r.labelChat(chat.Conversation{Messages: slices.Concat(prompt, answer)}); err != nil {
			return tokens, err
		}
	}
	return tokens, nil
}

// addPair adds a pair of answers with their prompt, and cuts each to the context. It drops the pair if an answer has no
// label left.
func (s *Set) addPair(chosen, rejected []int32) error {
	most := s.options.Context + 1
	a, b := chosen[:min(most, len(chosen))], rejected[:min(most, len(rejected))]
	if len(a) < len(chosen) || len(b) < len(rejected) {
		s.stats.Truncated++
	}
	if predicted(a) == 0 || predicted(b) == 0 {
		s.stats.Dropped++
		return nil
	}
	s.samples = append(s.samples, sample{at: s.spool.len(), n: int32(len(a) + len(b)), mid: int32(len(a))})
	s.stats.Tokens += int64(len(a) + len(b) - 2)
	s.stats.Trained += int64(predicted(a) + predicted(b))
	if err := s.spool.add(a); err != nil {
		return err
	}
	return s.spool.add(b)
}

// predicted returns how many tokens after the first count as labels.
func predicted(tokens []int32) (n int) {
	for i, t := range tokens {
		if t >= 0 && i > 0 {
			n++
		}
	}
	return n
}

// Pairs returns the number of pairs, including those that are held out. Their numbers are 0 to Pairs-1.
func (s *Set) Pairs() int {
	if !s.options.Pairs {
		return 0
	}
	return len(s.samples) + len(s.held)
}

// Once yields the pairs that steps first to last-1 train on and the held-out pairs, each pair once, in micro-batches of
// at most micro. A pair is in the same micro-batch whatever the steps are, so Once may also yield pairs that these steps
// do not train on. It ends after an error.
func (s *Set) Once(first, last, samples, micro int) iter.Seq2[Batch, error] {
	n := len(s.samples)
	needed := make([]bool, n)
	for i := range min(int64(last-first)*int64(samples), 2*int64(n)) { // 2·n in a row contain a whole epoch
		needed[s.number(int64(first)*int64(samples)+i)] = true
	}
	s.enter(0)
	order := slices.Clone(s.order)
	return func(yield func(Batch, error) bool) {
		for lo := 0; lo < n; lo += micro {
			group := order[lo:min(lo+micro, n)]
			if !slices.ContainsFunc(group, func(i int) bool { return needed[i] }) {
				continue
			}
			if b, err := s.batch(group); !yield(b, err) || err != nil {
				return
			}
		}
		s.HeldOut(micro)(yield)
	}
}
