package serve

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// answer is an answer while its tokens come.
type answer struct {
	*request
	id      string
	created int64
	writing *writing
	tokens  int // of the answer, with the one that ends it
	finish  string
	waiting []said // tokens whose text is not written yet
	reused  *atomic.Int64
}

// said is a token of the answer, and where its text begins.
type said struct {
	odds     []likely
	at, char int // in bytes, and in characters
}

func newAnswer(q *request, j *job, id string) *answer {
	return &answer{request: q, reused: &j.reused, id: id, created: time.Now().Unix(), writing: newWriting(q.model.Tokenizer, q.stops)}
}

// take adds an event, and returns the text that is ready and its tokens. It sets finish at the end of the answer.
func (a *answer) take(e event) (text string, tokens []said) {
	a.tokens++
	if e.end {
		a.finish = "stop"
	} else {
		at, char := a.writing.length()
		if text = a.writing.next(e.token); a.top >= 0 {
			a.waiting = append(a.waiting, said{e.odds, at, char})
		}
		if a.writing.stopped {
			a.finish = "stop"
		} else if a.tokens == a.most {
			a.finish = "length"
		}
	}
	if a.finish != "" {
		text += a.writing.end()
		if a.writing.stopped {
			a.finish = "stop"
		}
	}
	n := 0
	for n < len(a.waiting) && (a.waiting[n].at < a.writing.written || a.finish != "" && !a.writing.stopped) {
		n++
	}
	tokens, a.waiting = a.waiting[:n], a.waiting[n:]
	return text, tokens
}

// object returns the kind of an answer, or of an event of a stream.
func (a *answer) object(event bool) string {
	switch {
	case !a.chat:
		return "text_completion"
	case event:
		return "chat.completion.chunk"
	}
	return "chat.completion"
}

func (a *answer) body(event bool, choices []any) map[string]any {
	return map[string]any{"id": a.id, "object": a.object(event), "created": a.created, "model": a.model.Name, "choices": choices}
}

// choice returns the one choice of an answer, or of an event: text and tokens, and how it ended, if it did.
func (a *answer) choice(key string, message any, tokens []said) map[string]any {
	c := map[string]any{"index": 0, key: message, "finish_reason": nil, "logprobs": nil}
	if a.finish != "" {
		c["finish_reason"] = a.finish
	}
	if len(tokens) > 0 {
		c["logprobs"] = a.odds(tokens)
	}
	return c
}

func (a *answer) usageBody() any {
	return map[string]any{"prompt_tokens": len(a.prompt), "completion_tokens": a.tokens, "total_tokens": len(a.prompt) + a.tokens,
		"prompt_tokens_details": map[string]any{"cached_tokens": a.reused.Load()}}
}

// odds returns the log-probabilities of tokens in the form of chats or of completions.
func (a *answer) odds(tokens []said) any {
	if a.chat {
		content := []any{}
		for _, t := range tokens {
			one := a.oneOdds(t.odds[0])
			top := []any{}
			for _, l := range t.odds[1:] {
				top = append(top, a.oneOdds(l))
			}
			one["top_logprobs"] = top
			content = append(content, one)
		}
		return map[string]any{"content": content, "refusal": nil}
	}
	texts, logprobs, tops, offsets := []string{}, []float64{}, []any{}, []int{}
	for _, t := range tokens {
		texts, logprobs, offsets = append(texts, a.model.text(t.odds[0].token)), append(logprobs, finite(t.odds[0].logprob)), append(offsets, t.char)
		top := map[string]float64{}
		for _, l := range t.odds[1:] {
			if text := a.model.text(l.token); top[text] == 0 || top[text] < l.logprob {
				top[text] = finite(l.logprob)
			}
		}
		tops = append(tops, top)
	}
	return map[string]any{"tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}
}

// oneOdds returns a token with its log-probability. Bytes that are not a text by themselves are not known.
func (a *answer) oneOdds(l likely) map[string]any {
	text := a.model.text(l.token)
	var bytes []int
	if !strings.Contains(text, "\uFFFD") {
		bytes = []int{}
		for _, b := range []byte(text) {
			bytes = append(bytes, int(b))
		}
	}
	return map[string]any{"token": text, "logprob": finite(l.logprob), "bytes": bytes}
}

// finite returns x, or the number by which the protocol says that a token is very unlikely: JSON has no −Inf.
func finite(x float64) float64 { return max(x, -9999) }

// wholeAnswer writes an answer when it is complete.
func (s *Server) wholeAnswer(w http.ResponseWriter, j *job, a *answer) error {
	var text strings.Builder
	var tokens []said
	for a.finish == "" {
		news, ended, fault, err := j.next()
		if err != nil {
			return errors.New("the client has gone away")
		}
		for _, e := range news {
			if a.finish != "" {
				break
			}
			more, some := a.take(e)
			text.WriteString(more)
			tokens = append(tokens, some...)
		}
		if ended && a.finish == "" {
			fault = orClosing(fault)
			fault.write(w)
			return errors.New(fault.message)
		}
	}
	j.stop()
	choice := a.choice("text", text.String(), tokens)
	if a.chat {
		choice = a.choice("message", map[string]any{"role": "assistant", "content": text.String(), "refusal": nil}, tokens)
	}
	body := a.body(false, []any{choice})
	body["usage"] = a.usageBody()
	writeJSON(w, http.StatusOK, body)
	return nil
}

// orClosing returns a failure, or that the server ends.
func orClosing(f *failure) *failure {
	if f == nil {
		return errClosing
	}
	return f
}

// events writes the events of a stream.
type events struct {
	w       http.ResponseWriter
	control *http.ResponseController
	begun   bool
}

func (e *events) send(body any) error {
	if !e.begun {
		e.w.Header().Set("Content-Type", "text/event-stream")
		e.w.WriteHeader(http.StatusOK)
		e.begun = true
	}
	if body == nil {
		_, err := e.w.Write([]byte("data: [DONE]\n\n"))
		return errors.Join(err, e.control.Flush())
	}
	var b strings.Builder
	b.WriteString("data: ")
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(body); err != nil {
		return err
	}
	b.WriteString("\n")
	_, err := e.w.Write([]byte(b.String()))
	return errors.Join(err, e.control.Flush())
}

// streamAnswer writes an answer while its tokens come.
func (s *Server) streamAnswer(w http.ResponseWriter, j *job, a *answer) error {
	out := &events{w: w, control: http.NewResponseController(w)}
	for a.finish == "" {
		news, ended, fault, err := j.next()
		if err != nil {
			return errors.New("the client has gone away")
		}
		if len(news) > 0 && !out.begun && a.chat {
			if err := out.send(a.event(a.choice("delta", map[string]any{"role": "assistant", "content": ""}, nil))); err != nil {
				return err
			}
		}
		for _, e := range news {
			if a.finish != "" {
				break
			}
			if err := a.sendNext(out, e); err != nil {
				return err
			}
		}
		if ended && a.finish == "" {
			fault = orClosing(fault)
			if !out.begun {
				fault.write(w)
				return errors.New(fault.message)
			}
			return errors.Join(errors.New(fault.message), out.send(fault.body()))
		}
	}
	j.stop()
	if a.usage {
		body := a.body(true, []any{})
		body["usage"] = a.usageBody()
		if err := out.send(body); err != nil {
			return err
		}
	}
	return out.send(nil)
}

// event returns the body of an event.
func (a *answer) event(choice map[string]any) map[string]any {
	body := a.body(true, []any{choice})
	if a.usage {
		body["usage"] = nil
	}
	return body
}

// sendNext sends what a token adds to the text, if it does, and the end of the answer.
func (a *answer) sendNext(out *events, e event) error {
	text, tokens := a.take(e)
	finish := a.finish
	if text != "" || len(tokens) > 0 {
		key, message := "text", any(text)
		if a.chat {
			key, message = "delta", map[string]any{"content": text}
			a.finish = "" // which chats have in an event of their own
		}
		err := out.send(a.event(a.choice(key, message, tokens)))
		if a.finish = finish; err != nil || !a.chat {
			return err
		}
	}
	if finish == "" {
		return nil
	}
	if a.chat {
		return out.send(a.event(a.choice("delta", map[string]any{}, nil)))
	}
	return out.send(a.event(a.choice("text", "", nil)))
}
