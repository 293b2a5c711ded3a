package serve

import (
	"slices"
	"sync/atomic"

	"github.com/snug-ml/snug/transformer"
)

// This file keeps the keys and values with which prompts begin, for requests that begin with the same tokens: a system prompt, examples,
// or an earlier turn of a conversation.
//
// The last bits of a row depend on how many rows are computed with it. So prompts are computed in passes that end at the same places in
// all of them, at 64, 128, 256 tokens and each further 256, and what is kept ends at such a place: then a request has the same bits
// with it and without.

// passEnd returns the number of tokens after the next pass, if done are computed.
func passEnd(done int) int {
	for end := chunk / 4; end < chunk; end *= 2 {
		if done < end {
			return end
		}
	}
	return (done/chunk + 1) * chunk
}

// wholePasses returns how many of the first tokens are whole passes.
func wholePasses(tokens int) (done int) {
	for end := passEnd(0); end <= tokens; end = passEnd(end) {
		done = end
	}
	return done
}

// prefixes are what is kept, the least recently used first. It belongs to the goroutine of [batch.run].
type prefixes struct {
	list  []*kept
	bytes atomic.Int64
}

// kept is the beginning of prompts to a model.
type kept struct {
	model *served
	*transformer.Prefix
}

// mostKept is the most beginnings that are kept: each is compared with each prompt.
const mostKept = 256

// find returns what is kept of the beginning of a prompt, and how many of its tokens a request can take. One is left to compute.
func (p *prefixes) find(j *job) (best *kept, tokens int) {
	for _, k := range p.list {
		if k.model != j.model {
			continue
		}
		if n := wholePasses(min(common(k.Tokens(), j.prompt), len(j.prompt)-1)); n > tokens {
			best, tokens = k, n
		}
	}
	if best != nil {
		p.list = append(slices.DeleteFunc(p.list, func(k *kept) bool { return k == best }), best)
	}
	return best, tokens
}

// common returns with how many tokens two texts begin alike.
func common(a, b []int32) int {
	n := min(len(a), len(b))
	for i, t := range a[:n] {
		if t != b[i] {
			return i
		}
	}
	return n
}

// keep keeps the beginning of a prompt that is computed, if there is room for it, in place of shorter beginnings of it.
func (p *prefixes) keep(j *job, room int64) {
	n := wholePasses(len(j.prompt) - 1)
	if _, have := p.find(j); n == 0 || have >= n {
		return
	}
	size := j.model.Model.Model.PrefixBytes(n)
	if size > room || j.g.CheckPrefix() != nil {
		return
	}
	for i := 0; i < len(p.list); {
		if k := p.list[i]; k.model == j.model && common(k.Tokens(), j.prompt) == len(k.Tokens()) {
			p.drop(i)
			continue
		}
		i++
	}
	for len(p.list) > 0 && (p.bytes.Load()+size > room || len(p.list) >= mostKept) {
		p.drop(0)
	}
	made, err := j.g.Prefix(n)
	if err != nil { // the model cannot, or there is no memory
		return
	}
	p.list = append(p.list, &kept{j.model, made})
	p.bytes.Add(made.Bytes())
}

// shrink drops the least recently used prefixes until they take at most most bytes.
func (p *prefixes) shrink(most int64) {
	for len(p.list) > 0 && p.bytes.Load() > most {
		p.drop(0)
	}
}

func (p *prefixes) drop(i int) {
	p.bytes.Add(-p.list[i].Bytes())
	_ = p.list[i].Close() // a device that fails fails the next request
	p.list = slices.Delete(p.list, i, i+1)
}

// take gives a job the beginning of its prompt, if it is kept.
func (b *batch) take(j *job) {
	k, n := b.kept.find(j)
	if k == nil {
		return
	}
	if err := j.g.PromptPrefix(k.Prefix, n); err != nil {
		j.g.Reset() // it computes all then
		return
	}
	j.fed, j.computed = n, n
	j.reused.Store(int64(n))
}

// room returns the bytes that beginnings may take beside the requests that run.
func (b *batch) room() int64 {
	if b.o.Memory > 0 {
		return b.o.Memory - b.held
	}
	return b.most
}

// fits reports whether a job fits into memory, for which beginnings make room.
func (b *batch) fits(j *job) bool {
	if b.o.Memory == 0 {
		return true
	}
	if b.held+j.bytes > b.o.Memory {
		return false
	}
	b.kept.shrink(b.o.Memory - b.held - j.bytes)
	return true
}
