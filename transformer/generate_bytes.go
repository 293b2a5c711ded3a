package transformer

import (
	"fmt"
	"runtime"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/internal/fault"
)

// GenerateBytes returns what a Generator with these options takes besides the model's weights, in bytes: the cache, the activations of
// Chunk tokens, which the model keeps, workspaces, tables of angles, the logits, and the scratch of attention on each core. It makes
// nothing. For layers with experts it assumes that all tokens choose the same expert. Errors are those of [Model.Generate].
func (m *Model) GenerateBytes(o GenerateOptions) (bytes int64, err error) {
	defer fault.Named(&err, "transformer: GenerateBytes")
	if err := m.usable(); err != nil {
		return 0, err
	}
	if o, err = m.checkGenerate(o); err != nil {
		return 0, err
	}
	costs, err := m.Costs(1, o.Chunk)
	if err != nil {
		return 0, err
	}
	c := &m.config
	most, input := int64(0), int64(0)
	for _, s := range costs.Stages {
		extra := s.ForwardExtra
		if e := &c.Experts; e.Count > 2*e.Chosen && e.Chosen > 0 {
			extra *= int64(e.Count/(2*e.Chosen) + 1)
		}
		most, input = max(most, input+s.Output+extra), s.Output
	}
	bytes = m.cacheBytes(o)
	bytes += most + most/8 // the gaps between them, as batches of other lengths come
	bytes += 4*int64(m.workspaceLen(o.Chunk)) + int64(len(m.ropes))*4*int64(c.widestHead())*int64(2*o.Context+o.Chunk)
	scratch := attention.Options{Batch: 1, Heads: c.Heads, KVHeads: c.KVHeads, SeqQ: o.Chunk, SeqK: o.Context, Dim: c.widestHead()}
	return bytes + int64(runtime.GOMAXPROCS(0))*scratch.ScratchBytes(), nil
}

// CacheBytes returns what each further Generator of the model with these options takes, besides GenerateBytes of the one with the longest
// Context and Chunk, in bytes: its cache, its tokens and its logits. It makes nothing. Errors are those of [Model.Generate].
func (m *Model) CacheBytes(o GenerateOptions) (bytes int64, err error) {
	defer fault.Named(&err, "transformer: CacheBytes")
	if m == nil {
		return 0, fmt.Errorf("the model is nil: %w", snug.ErrConfig)
	}
	if err := m.usable(); err != nil {
		return 0, err
	}
	if o, err = m.checkGenerate(o); err != nil {
		return 0, err
	}
	return m.cacheBytes(o) + 8*int64(o.Context), nil
}

// cacheBytes is CacheBytes without the tokens.
func (m *Model) cacheBytes(o GenerateOptions) (bytes int64) {
	c := &m.config
	for i, window := range c.Windows {
		if x := c.mixer(i); x != nil {
			bytes += 4 * int64(max(1, x.state(c)))
			if !c.Mamba.Beside {
				continue
			}
		}
		rows, _ := o.cacheRows(window)
		bytes += int64(m.dtype.Size()) * int64(rows) * int64(c.keys(i)+c.values(i))
	}
	bytes += 4 * int64(c.Vocab)
	if o.Sampling.Temperature > 0 {
		bytes += 12 * int64(c.Vocab)
	}
	return bytes
}

// StreamBytes returns the bytes of the largest matrix, and of all matrices, that Options.Stream leaves in the folder, 0 for others.
func (m *Model) StreamBytes() (largest, all int64) {
	if m.opened() != nil || m.folder == nil {
		return 0, 0
	}
	for p := range m.unread() {
		n := int64(p.Len()) * int64(m.dtype.Size())
		largest, all = max(largest, n), all+n
	}
	return largest, all
}

// SetStream changes Options.Stream of a model that was opened with it, before the first pass: what a process can give is known when
// the model is there. The error wraps [snug.ErrConfig], and [snug.ErrNoMemory] for less than the largest matrix.
func (m *Model) SetStream(bytes int64) (err error) {
	defer fault.Named(&err, "transformer: SetStream")
	if err := m.usable(); err != nil {
		return err
	}
	largest, _ := m.StreamBytes()
	switch {
	case m.folder == nil:
		return fmt.Errorf("the model was opened without the option Stream: %w", snug.ErrConfig)
	case m.folder.listed:
		return fmt.Errorf("matrices are in memory already: %w", snug.ErrConfig)
	case bytes < largest:
		return fmt.Errorf("%d bytes, want those of the largest matrix, %d, or more: %w", bytes, largest, snug.ErrNoMemory)
	}
	m.options.Stream = bytes
	return nil
}
