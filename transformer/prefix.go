package transformer

import (
	"errors"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
)

// Prefix is the first tokens of a text with their keys and values, for texts that begin with the same: a system prompt, or examples.
// It does not change, and needs no generator. It is of the weights at the time of [Generator.Prefix].
type Prefix struct {
	m      *Model
	tokens []int32
	layers []cache
	bytes  int64
	free   []func() error
}

// Prefix returns a copy of the first n tokens and their keys and values, which takes [Model.PrefixBytes].
//
// The error wraps [snug.ErrShape] unless 1 to all tokens are asked for that are computed, all but the last of a prompt, and
// [snug.ErrConfig] for a generator that has positions of [Generator.PromptBatch], whose layers forget rows behind a window or have a [Mixer], or whose
// rope depends on the length of the text. Or it wraps [snug.ErrNoMemory], or comes from the device.
func (g *Generator) Prefix(n int) (_ *Prefix, err error) {
	defer fault.Named(&err, "transformer: Prefix")
	if err := g.shares(); err != nil {
		return nil, err
	}
	if n < 1 || n > g.done {
		return nil, fmt.Errorf("%d tokens, and %d are computed: %w", n, g.done, snug.ErrShape)
	}
	p := &Prefix{m: g.m, tokens: slices.Clone(g.tokens[:n])}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	p.bytes = 4 * int64(n)
	for _, from := range g.layers {
		l := cache{widths: from.widths, rows: n, used: n}
		if l.widths[0] == 0 {
			p.layers = append(p.layers, l)
			continue
		}
		for j, v := range []*snug.View{&l.k, &l.v} {
			var free func() error
			if *v, free, err = snug.MakeView(g.m.dev, g.m.dtype, n*l.widths[j]); err != nil {
				return nil, err
			}
			p.free = append(p.free, free)
			p.bytes += int64(v.Bytes())
		}
		if err := copyRows(&l, &from, n); err != nil {
			return nil, err
		}
		p.layers = append(p.layers, l)
	}
	return p, nil
}

// PromptPrefix is [Generator.Prompt] of the first n tokens of a prefix for a generator without tokens. It copies their keys and values,
// and computes nothing.
//
// The error wraps [snug.ErrShape], with nothing appended, for more tokens than the prefix or Context has, and [snug.ErrConfig] for a
// generator that has tokens or for which [Generator.Prefix] would refuse, and for a closed prefix and one of another model. Or it comes
// from the device: call Reset then.
func (g *Generator) PromptPrefix(p *Prefix, n int) (err error) {
	defer fault.Named(&err, "transformer: PromptPrefix")
	if err := g.shares(); err != nil {
		return err
	}
	switch {
	case p == nil || p.m != g.m || p.layers == nil:
		return fmt.Errorf("the prefix is of another model, or closed: %w", snug.ErrConfig)
	case len(g.tokens) > 0:
		return fmt.Errorf("there are %d tokens, want none: %w", len(g.tokens), snug.ErrConfig)
	case n < 1 || n > len(p.tokens) || n > g.options.Context:
		return fmt.Errorf("%d tokens, and the prefix has %d and the Context %d: %w", n, len(p.tokens), g.options.Context, snug.ErrShape)
	}
	g.m.pass.Number++ // as before a first pass
	for i := range g.layers {
		if g.layers[i].widths[0] == 0 {
			continue
		}
		if err := copyRows(&g.layers[i], &p.layers[i], n); err != nil {
			return err
		}
		g.layers[i].used = n
	}
	g.tokens, g.done, g.next = append(g.tokens, p.tokens[:n]...), n, n
	return nil
}

// CheckPrefix returns the error of [Generator.Prefix] for a generator whose tokens are computed, whatever their number.
func (g *Generator) CheckPrefix() (err error) {
	defer fault.Named(&err, "transformer: CheckPrefix")
	return g.shares()
}

// shares returns an error unless the cache has the keys and values of all tokens at their positions.
func (g *Generator) shares() error {
	if g == nil || g.m == nil || g.layers == nil {
		return fmt.Errorf("the Generator is closed, or Generate did not make it: %w", snug.ErrConfig)
	}
	if err := g.m.usable(); err != nil {
		return err
	}
	if g.m.config.recurrent() {
		return fmt.Errorf("the state of layers without attention is that of the last token, and not of those before it: %w", snug.ErrConfig)
	}
	forgets := slices.ContainsFunc(g.layers, func(l cache) bool { return l.keep > 0 })
	if forgets || g.next != g.done || g.m.dynamic() {
		return fmt.Errorf("a window forgets rows, or positions depend on more than the tokens before them: %w", snug.ErrConfig)
	}
	return nil
}

// copyRows copies so many elements of the keys and of the values.
func copyRows(to, from *cache, n int) error {
	k, v := n*to.widths[0], n*to.widths[1]
	return errors.Join(snug.Copy(part(to.k, 0, k), part(from.k, 0, k)), snug.Copy(part(to.v, 0, v), part(from.v, 0, v)))
}

// Tokens returns the tokens. The list is the Prefix's own.
func (p *Prefix) Tokens() []int32 {
	if p == nil {
		return nil
	}
	return p.tokens
}

// Bytes returns the bytes that the prefix takes.
func (p *Prefix) Bytes() int64 {
	if p == nil {
		return 0
	}
	return p.bytes
}

// Close frees the keys and values. On the CPU the garbage collector does.
func (p *Prefix) Close() (err error) {
	if p == nil {
		return nil
	}
	for _, free := range p.free {
		err = errors.Join(err, free())
	}
	p.free, p.layers, p.bytes = nil, nil, 0
	return err
}

// PrefixBytes returns the bytes of a [Prefix] of n tokens.
func (m *Model) PrefixBytes(n int) int64 {
	if m == nil || n < 1 {
		return 0
	}
	bytes := int64(4)
	for i := range m.config.Windows {
		bytes += int64(m.config.keys(i)+m.config.values(i)) * int64(m.dtype.Size())
	}
	return int64(n) * bytes
}
