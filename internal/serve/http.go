package serve

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

func number(i int) string { return strconv.Itoa(i) }

// Run computes answers until ctx is done, or until Drain was called and the answers under way are complete. The error is of ctx.
func (s *Server) Run(ctx context.Context) error { return s.batch.run(ctx) }

// Drain refuses requests from now on, and those that wait.
func (s *Server) Drain() { s.batch.drain() }

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	w := &timed{to, http.NewResponseController(to), s.o.Write}
	_ = w.control.SetReadDeadline(time.Now().Add(s.o.Read)) // writers of tests have no deadlines
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	path := strings.TrimSuffix(r.URL.Path, "/")
	switch fault := s.allows(r, path); {
	case fault != nil:
		fault.write(w)
	case path == "/health":
		s.onlyGet(w, r, s.health)
	case path == "/v1/models":
		s.onlyGet(w, r, func(w http.ResponseWriter) { s.listModels(w) })
	case strings.HasPrefix(path, "/v1/models/"):
		s.onlyGet(w, r, func(w http.ResponseWriter) { s.oneModel(w, strings.TrimPrefix(path, "/v1/models/")) })
	case path == "/v1/chat/completions":
		s.post(w, r, s.readChat)
	case path == "/v1/completions":
		s.post(w, r, s.readCompletion)
	default:
		(&failure{status: http.StatusNotFound, message: fmt.Sprintf("there is no %.80q: this server has /v1/chat/completions, /v1/completions, /v1/models and /health", r.URL.Path)}).write(w)
	}
}

// timed is a writer to a client that must take each part in time.
type timed struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
}

// Write implements [io.Writer].
func (t *timed) Write(b []byte) (int, error) {
	_ = t.control.SetWriteDeadline(time.Now().Add(t.timeout)) // writers of tests have no deadlines
	return t.ResponseWriter.Write(b)
}

// Unwrap returns the writer, for [http.ResponseController].
func (t *timed) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// allows returns a failure for a request that is not allowed here.
func (s *Server) allows(r *http.Request, path string) *failure {
	if s.o.Local && !isLocal(r.Host) {
		return &failure{status: http.StatusForbidden, message: fmt.Sprintf("the host %.80q is not this machine: want localhost or its address", r.Host), code: "host_not_allowed"}
	}
	if s.o.Token == "" || path == "/health" {
		return nil
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(sum[:], s.token[:]) != 1 {
		return &failure{status: http.StatusUnauthorized, message: "want the server's token, as Authorization: Bearer TOKEN", code: "invalid_api_key"}
	}
	return nil
}

// isLocal reports whether a Host names this machine by its loopback.
func isLocal(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

func (s *Server) onlyGet(w http.ResponseWriter, r *http.Request, answer func(http.ResponseWriter)) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		(&failure{status: http.StatusMethodNotAllowed, message: "want GET"}).write(w)
		return
	}
	answer(w)
}

func (s *Server) health(w http.ResponseWriter) {
	s.batch.mu.Lock()
	closing := s.batch.closing
	s.batch.mu.Unlock()
	if closing {
		errClosing.write(w)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"status": "ok"})
}

func (s *Server) describe(m *served) any {
	return map[string]any{"id": m.Name, "object": "model", "created": s.begun.Unix(), "owned_by": "snug"}
}

func (s *Server) listModels(w http.ResponseWriter) {
	var list []any
	for _, m := range s.models {
		list = append(list, s.describe(m))
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

func (s *Server) oneModel(w http.ResponseWriter, name string) {
	m, fault := s.named(name)
	if fault != nil {
		fault.write(w)
		return
	}
	writeJSON(w, http.StatusOK, s.describe(m))
}

// post reads a request and answers it.
func (s *Server) post(w http.ResponseWriter, r *http.Request, read func(fields) (*request, *failure)) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", "POST")
		(&failure{status: http.StatusMethodNotAllowed, message: "want POST"}).write(w)
		return
	}
	// Pages of other sites can send other types without asking first, which the server would have to allow.
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		(&failure{status: http.StatusUnsupportedMediaType, message: "want Content-Type: application/json"}).write(w)
		return
	}
	select {
	case s.room <- struct{}{}:
		defer func() { <-s.room }()
	default:
		errFull.write(w)
		return
	}
	f, fault := readFields(http.MaxBytesReader(w, r.Body, BodyBytes(s.o.Context)))
	if fault != nil {
		fault.write(w)
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // the client waits now
	q, fault := read(f)
	if fault != nil {
		fault.write(w)
		return
	}
	s.answer(w, r, q)
}

// answer computes a request and writes the answer.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, q *request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	j := &job{ctx: ctx, stop: cancel, model: q.model, prompt: q.prompt, most: q.most, sampling: q.sampling, repeats: q.repeats, top: q.top, ready: make(chan struct{}, 1)}
	var err error
	o := CacheOptions(len(q.prompt) + q.most)
	if j.bytes, err = q.model.Model.Model.CacheBytes(o); err != nil {
		failed(err).write(w)
		return
	}
	if fault := s.batch.submit(j); fault != nil {
		fault.write(w)
		return
	}
	defer func() {
		cancel()
		s.batch.leave(j)
	}()
	a := newAnswer(q, j, newID(q.chat))
	began := time.Now()
	if q.stream {
		err = s.streamAnswer(w, j, a)
	} else {
		err = s.wholeAnswer(w, j, a)
	}
	seconds, ending := time.Since(began).Seconds(), a.finish
	if err != nil {
		ending = err.Error()
	}
	s.o.Log(fmt.Sprintf("%s: %d tokens of a prompt, %d of them kept from others, %d of the answer in %.1f s: %s", q.model.Name, len(q.prompt), j.reused.Load(), a.tokens, seconds, ending))
}

// newID returns the name of an answer.
func newID(isChat bool) string {
	random := make([]byte, 12)
	_, _ = rand.Read(random) // which never fails
	if isChat {
		return "chatcmpl-" + hex.EncodeToString(random)
	}
	return "cmpl-" + hex.EncodeToString(random)
}
