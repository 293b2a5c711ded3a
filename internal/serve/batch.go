package serve

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/transformer"
)

// job is a request that is computed.
type job struct {
	ctx      context.Context // of the client
	stop     func()          // ends ctx
	model    *served
	prompt   []int32
	most     int // tokens of the answer
	sampling transformer.Sampling
	repeats  bool // the same request gets the same answer, whatever else is computed
	top      int  // most likely tokens that are reported beside each token; below 0: no probabilities
	bytes    int64

	g    *transformer.Generator // once it runs
	fed  int                    // tokens of the prompt that the generator has
	said int                    // tokens of the answer

	computed int          // tokens of the prompt whose keys are there
	reused   atomic.Int64 // those that were kept from other requests

	mu    sync.Mutex
	news  []event
	ended bool
	fault *failure
	ready chan struct{} // has an element when there is news
}

// event is a token of an answer.
type event struct {
	token int32
	end   bool // the token ends the answer, and is no part of its text
	odds  []likely
}

// likely is a token with its log-probability. The first of a list is the one that was chosen.
type likely struct {
	token   int32
	logprob float64
}

// tell adds to what the client is told.
func (j *job) tell(e []event, ended bool, fault *failure) {
	j.mu.Lock()
	if !j.ended {
		j.news, j.ended, j.fault = append(j.news, e...), ended, fault
	}
	j.mu.Unlock()
	select {
	case j.ready <- struct{}{}:
	default:
	}
}

// next waits for news, and returns them, and whether these are the last.
func (j *job) next() (news []event, ended bool, fault *failure, err error) {
	for {
		j.mu.Lock()
		news, ended, fault = j.news, j.ended, j.fault
		j.news = nil
		j.mu.Unlock()
		if len(news) > 0 || ended {
			return news, ended, fault, nil
		}
		select {
		case <-j.ready:
		case <-j.ctx.Done():
			return nil, false, nil, j.ctx.Err()
		}
	}
}

// batch are the requests that are computed and those that wait.
type batch struct {
	o       Options
	wake    chan struct{}
	running []*job // of the goroutine of run
	held    int64  // bytes of the running
	kept    prefixes
	most    int64        // bytes of these, where there is no limit of memory
	rows    atomic.Int64 // of prompts that were computed

	mu      sync.Mutex
	queue   []*job
	places  int // of running that are free
	closing bool
}

// newBatch returns a batch that keeps up to most bytes of beginnings where Memory sets no limit.
func newBatch(o Options, most int64) *batch {
	return &batch{o: o, wake: make(chan struct{}, 1), places: o.Rows, most: most}
}

var (
	errFull    = &failure{status: http.StatusTooManyRequests, message: "too many requests wait: try again later", code: "rate_limit_exceeded"}
	errClosing = &failure{status: http.StatusServiceUnavailable, message: "the server ends"}
)

// submit puts a job into the queue.
func (b *batch) submit(j *job) *failure {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closing:
		return errClosing
	case len(b.queue) >= b.o.Queue+b.places:
		return errFull
	}
	b.queue = append(b.queue, j)
	b.ring()
	return nil
}

// leave takes a job out of the queue whose client has gone away. One that runs ends before the next token.
func (b *batch) leave(j *job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue = slices.DeleteFunc(b.queue, func(q *job) bool { return q == j })
	b.ring()
}

// ring wakes run.
func (b *batch) ring() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// drain refuses jobs from now on, and those that wait.
func (b *batch) drain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closing = true
	for _, j := range b.queue {
		j.tell(nil, true, errClosing)
	}
	b.queue = nil
	b.ring()
}

// run computes until ctx is done, or until nothing runs after drain.
func (b *batch) run(ctx context.Context) error {
	defer func() {
		b.drain()
		for len(b.running) > 0 {
			b.end(b.running[0], errClosing)
		}
		b.kept.shrink(-1)
	}()
	for ctx.Err() == nil {
		b.dropGone()
		b.admit()
		if len(b.running) > 0 {
			b.step(ctx)
			continue
		}
		b.mu.Lock()
		closing := b.closing
		b.mu.Unlock()
		if closing {
			return nil
		}
		select {
		case <-b.wake:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// dropGone ends jobs whose clients have gone away.
func (b *batch) dropGone() {
	for _, j := range slices.Clone(b.running) {
		if j.ctx.Err() != nil {
			b.end(j, nil)
		}
	}
}

// admit starts jobs in the order in which they came, as long as there is memory.
func (b *batch) admit() {
	for {
		b.mu.Lock()
		if len(b.queue) == 0 || b.places == 0 || !b.fits(b.queue[0]) {
			b.mu.Unlock()
			return
		}
		j := b.queue[0]
		b.queue = slices.Delete(b.queue, 0, 1)
		b.places--
		b.mu.Unlock()
		b.held += j.bytes
		b.running = append(b.running, j)
		o := CacheOptions(len(j.prompt) + j.most)
		o.Sampling = j.sampling
		var err error
		if j.g, err = j.model.Model.Model.Generate(o); err != nil {
			b.end(j, failed(err))
		}
	}
}

// end takes a job out of the batch, with a failure unless it is nil.
func (b *batch) end(j *job, fault *failure) {
	err := j.g.Close()
	if err != nil && fault == nil {
		fault = failed(err)
	}
	j.g = nil
	b.held -= j.bytes
	b.running = slices.DeleteFunc(b.running, func(r *job) bool { return r == j })
	b.mu.Lock()
	b.places++
	b.mu.Unlock()
	j.tell(nil, true, fault)
}

// failed is the failure of a request that could not be computed.
func failed(err error) *failure {
	return &failure{status: http.StatusInternalServerError, message: err.Error()}
}

// step computes a part of one prompt, and the next token of each answer.
func (b *batch) step(ctx context.Context) {
	for _, j := range b.running {
		if j.fed < len(j.prompt) {
			b.feed(ctx, j)
			break
		}
	}
	var models []*served
	answers := map[*served][]*job{}
	for _, j := range b.running {
		if j.fed == len(j.prompt) {
			if answers[j.model] == nil {
				models = append(models, j.model)
			}
			answers[j.model] = append(answers[j.model], j)
		}
	}
	for _, m := range models {
		b.answer(ctx, m, answers[m])
	}
}

// feed gives a generator more of its prompt, up to where the next pass ends.
func (b *batch) feed(ctx context.Context, j *job) {
	if j.fed == 0 {
		b.take(j)
	}
	n := min(passEnd(j.computed)+1, len(j.prompt)) - j.fed // the last token waits for Next
	if err := j.g.Prompt(ctx, j.prompt[j.fed:j.fed+n]); err != nil {
		b.fail(ctx, j, err)
		return
	}
	j.fed += n
	b.rows.Add(int64(j.fed - 1 - j.computed))
	j.computed = j.fed - 1
	if j.fed == len(j.prompt) {
		b.kept.keep(j, b.room())
	}
}

// answer computes the next token of the jobs of a model.
func (b *batch) answer(ctx context.Context, m *served, jobs []*job) {
	rows := 0
	list := make([]*transformer.Generator, len(jobs))
	for i, j := range jobs {
		if list[i] = j.g; j.repeats {
			rows = b.o.Rows
		}
	}
	if err := m.Model.Model.ComputeNext(ctx, list, rows); err != nil {
		for _, j := range jobs {
			b.fail(ctx, j, err)
		}
		return
	}
	chosen := choices{ctx, jobs, make([]choice, len(jobs))}
	choose.Run(len(jobs), chosen)
	for i, j := range jobs {
		c := &chosen.list[i]
		if c.err != nil {
			b.fail(ctx, j, c.err)
			continue
		}
		j.said++
		c.end = slices.Contains(m.Ends, c.token)
		j.tell([]event{c.event}, false, nil)
		if c.end || j.said == j.most {
			b.end(j, nil)
		}
	}
}

// choices are the next tokens of jobs, whose logits are computed.
type choices struct {
	ctx  context.Context
	jobs []*job
	list []choice
}

type choice struct {
	event
	err error
}

// choose chooses them on all cores: it takes an exponential for each token of the vocabulary.
var choose = cpu.NewTask(func(c *choices, i int) {
	j, to := c.jobs[i], &c.list[i]
	if to.token, to.err = j.g.Next(c.ctx); to.err == nil && j.top >= 0 {
		to.odds = mostLikely(j.g.Logits(), to.token, j.top)
	}
})

// fail ends a job by an error.
func (b *batch) fail(ctx context.Context, j *job, err error) {
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		b.end(j, errClosing)
		return
	}
	b.end(j, failed(err))
}
