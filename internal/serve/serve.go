// Package serve answers requests in the protocol of OpenAI's API by models of package transformer: chats and completions, whole or as a
// stream of events. Requests are computed together. A request joins the running batch between two tokens, and leaves it when it ends.
//
//	s, err := serve.New(serve.Options{Models: []serve.Model{{Name: "base", Model: m, Tokenizer: tok}}, Rows: 8, Context: 4096})
//	go s.Run(ctx)             // computes until ctx is done
//	err = (&http.Server{Handler: s}).Serve(listener)
package serve

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/transformer"
)

// Model is a model with its name. Models that share weights must not be used by others while the server runs.
type Model struct {
	Name      string
	Model     *transformer.Model
	Tokenizer *tokenizer.Tokenizer
	Template  *chat.Template // nil: it takes completions alone
	Ends      []int32        // tokens that end an answer
	// AddsSpecial says whether the tokenizer adds its special tokens to a text of the template; nil: it does not.
	AddsSpecial func(text string) bool
}

// Options are the options of New.
type Options struct {
	Models  []Model // the first answers requests that name none
	Rows    int     // most requests that are computed at a time
	Context int     // most tokens of a prompt and its answer
	Memory  int64   // bytes of the caches of all requests that are computed at a time, and of beginnings that are kept; 0: no limit but Rows
	Queue   int     // most requests that wait; 0: none
	Token   string  // clients send it as Authorization: Bearer; empty: none is wanted
	Local   bool    // requests must name this machine as their host, so that a page of another site cannot reach the server by a name of its own
	Log     func(line string)
	// Write is the longest time that a client takes nothing of its answer, and Read that of its request to arrive; 0: 30 s.
	Write, Read time.Duration
}

// chunk is the tokens of a prompt that are computed between two tokens of answers.
const chunk = 256

// CacheOptions are the options of the generator of a request with so many tokens in all.
func CacheOptions(tokens int) transformer.GenerateOptions {
	return transformer.GenerateOptions{Context: tokens, Chunk: min(chunk, tokens), Sampling: transformer.Sampling{Temperature: 1}}
}

// BodyBytes is the most bytes of the body of a request to a server with a Context.
func BodyBytes(context int) int64 { return 64<<10 + 32*int64(min(context, 1<<19)) }

// Server is an http.Handler. Run computes what it answers.
type Server struct {
	o      Options
	models []*served
	batch  *batch
	token  [sha256.Size]byte
	begun  time.Time
	room   chan struct{} // of requests that are read or answered
}

// served is a model that is ready for requests.
type served struct {
	Model
	plain  int32 // a token behind which others have their own text; -1 for none
	vocab  int
	family transformer.Config
}

// New returns a Server. The error wraps [snug.ErrConfig].
func New(o Options) (*Server, error) {
	if len(o.Models) == 0 || o.Rows < 1 || o.Context < 2 || o.Queue < 0 || o.Memory < 0 {
		return nil, fmt.Errorf("serve: %d models, %d Rows, a Context of %d, a Queue of %d and a Memory of %d, want a model, 1 row, 2 tokens, 0 and 0, or more: %w",
			len(o.Models), o.Rows, o.Context, o.Queue, o.Memory, snug.ErrConfig)
	}
	if o.Write == 0 {
		o.Write = 30 * time.Second
	}
	if o.Read == 0 {
		o.Read = 30 * time.Second
	}
	if o.Log == nil {
		o.Log = func(string) {}
	}
	s := &Server{o: o, token: sha256.Sum256([]byte(o.Token)), begun: time.Now(), room: make(chan struct{}, o.Rows+o.Queue+4)}
	names, most := map[string]bool{}, int64(0)
	for _, m := range o.Models {
		if m.Name == "" || names[m.Name] || m.Model == nil || m.Tokenizer == nil {
			return nil, fmt.Errorf("serve: the model %q has no name of its own, no Model or no Tokenizer: %w", m.Name, snug.ErrConfig)
		}
		names[m.Name] = true
		one := CacheOptions(o.Context)
		bytes, err := m.Model.CacheBytes(one)
		if err != nil {
			return nil, err
		}
		if o.Memory > 0 && bytes > o.Memory {
			return nil, fmt.Errorf("serve: a text of %d tokens takes %d bytes, and Memory is %d: %w", o.Context, bytes, o.Memory, snug.ErrNoMemory)
		}
		most = max(most, bytes)
		c := &served{Model: m, plain: -1, family: m.Model.Config()}
		c.vocab = c.family.Vocab
		if ids, err := m.Tokenizer.Encode("a", tokenizer.EncodeOptions{NoSpecial: true}); err == nil && len(ids) > 0 {
			c.plain = ids[len(ids)-1]
		}
		s.models = append(s.models, c)
	}
	s.batch = newBatch(o, int64(o.Rows)*most)
	return s, nil
}

// named returns the model that a request names.
func (s *Server) named(name string) (*served, *failure) {
	if name == "" {
		return s.models[0], nil
	}
	for _, m := range s.models {
		if m.Name == name {
			return m, nil
		}
	}
	return nil, &failure{status: http.StatusNotFound, message: fmt.Sprintf("there is no model %.80q; GET /v1/models lists them", name), param: "model", code: "model_not_found"}
}

// text returns the text of a token as it is within a text.
func (m *served) text(id int32) string {
	if m.plain < 0 {
		return m.Tokenizer.Decode([]int32{id}, tokenizer.DecodeOptions{})
	}
	s := m.Tokenizer.Stream(tokenizer.DecodeOptions{})
	s.Next(m.plain)
	return s.Next(id) + s.Flush()
}
