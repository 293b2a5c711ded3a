package transformer

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/sweep"
)

// Save writes a folder that transformers loads: config.json and the weights in the model's type. It decodes matrices in
// 4 bits and merges adapters, W + s·B·A, with rows scaled to their magnitudes if there are any, and rounds once. A file
// of weights has at most maxShardBytes bytes of tensors; 0 is 5 GB. See [amp.SaveShards] for what a killed process
// leaves. The error wraps [snug.ErrConfig], with nothing written, when config.json has no fields for the model, see
// [Config.Write], and [snug.ErrNonFinite] when a merged or converted element is not finite in the model's type; then the
// weights of the folder stay as they were. [Model.LostByMerging] says what rounding has lost.
//
// If the ranks of data-parallel training divide the matrices, one rank calls Save, and the others call [Model.JoinSave].
func (m *Model) Save(dir string, maxShardBytes int64) error {
	c, err := m.weights(func(tensors iter.Seq2[amp.Tensor, snug.View]) error {
		return amp.SaveShards(dir, maxShardBytes, tensors, map[string]string{"format": "pt"})
	})
	if err != nil {
		return fmt.Errorf("transformer: Save: %w", err)
	}
	return c.Write(dir)
}

// Weights calls do with the weights that [Model.Save] writes, by their published names, for whoever writes them into a file of a
// larger model. A tensor is made when it is asked for, by [amp.Tensor.Make], and its elements may change after the next one is.
// Errors are those of Save and of do.
func (m *Model) Weights(do func(tensors iter.Seq2[amp.Tensor, snug.View]) error) (err error) {
	defer fault.Named(&err, "transformer: Weights")
	if do == nil {
		return fmt.Errorf("do is nil: %w", snug.ErrConfig)
	}
	_, err = m.weights(do)
	return err
}

func (m *Model) weights(do func(tensors iter.Seq2[amp.Tensor, snug.View]) error) (Config, error) {
	return m.merged(func(merge *merger) error {
		err := do(m.finiteValues(merge))
		m.lost = m.lostBy(merge)
		return err
	})
}

// merged calls do, which writes or gathers the weights, unless the model's config.json, which it returns, cannot be written.
func (m *Model) merged(do func(merge *merger) error) (c Config, err error) {
	if err := m.opened(); err != nil {
		return c, err
	}
	c = m.config
	c.DType = m.dtype
	if _, err := c.encode(); err != nil { // before the weights of a folder are replaced
		return c, err
	}
	merge := &merger{Model: m}
	if err := m.folder.begin(); err != nil {
		return c, errors.Join(err, m.freeStaging())
	}
	return c, errors.Join(do(merge), merge.close(), m.folder.end(), m.freeStaging())
}

// ended returns the cause of the end of Options.Context, if it is done.
func (m *Model) ended() error {
	if m.options.Context == nil {
		return nil
	}
	return context.Cause(m.options.Context)
}

// lostBy returns what a merger has lost, and the opening of the model, with its earlier adapters.
func (m *Model) lostBy(merge *merger) amp.LostUpdates {
	lost := merge.lost
	lost.Add(m.tables.lost)
	if m.folder != nil && m.folder.before != nil {
		lost.Add(m.folder.before.lostBy(m.folder.before))
	}
	return lost
}

// LostByMerging returns the changes by adapters that the last Save has lost, because in the model's type the sum of a weight
// and its change is the weight. The type F32 loses none but the smallest.
func (m *Model) LostByMerging() amp.LostUpdates { return m.lost }

// finiteValues is values, with an error for elements that are not finite in the model's type.
func (m *Model) finiteValues(merge *merger) iter.Seq2[amp.Tensor, snug.View] {
	return func(yield func(amp.Tensor, snug.View) bool) {
		for t, v := range m.values(merge) {
			made := t.Make
			if made == nil {
				made = func() (snug.View, error) { return v, nil }
			}
			t.Make = func() (snug.View, error) {
				if err := m.ended(); err != nil {
					return snug.View{}, err
				}
				w, err := made()
				if err == nil {
					err = checkFinite(t.Name, w)
				}
				return w, err
			}
			if !yield(t, snug.View{}) {
				return
			}
		}
	}
}

// checkFinite returns an error that names the first element that is not finite. On another device than the CPU it copies 64 Ki
// elements at a time.
func checkFinite(name string, v snug.View) error {
	const piece = 1 << 16
	host, _, err := snug.MakeView(snug.CPU(), v.DType(), min(piece, v.Len()))
	if err != nil {
		return err
	}
	for lo := 0; lo < v.Len(); lo += piece {
		p := part(v, lo, min(piece, v.Len()-lo))
		if !p.Device().IsCPU() {
			copied := part(host, 0, p.Len())
			if err := snug.Copy(copied, p); err != nil {
				return err
			}
			p = copied
		}
		if i := notFinite(p); i >= 0 {
			return fmt.Errorf("%s[%d] is not finite in %s: %w", name, lo+i, v.DType(), snug.ErrNonFinite)
		}
	}
	return nil
}

// notFinite returns the first element of a vector on the CPU that is a NaN or an infinity, or -1.
func notFinite(v snug.View) int {
	return sweep.FirstNotBelow(v, 0, v.Len(), 1, sweep.Infinity)
}

// JoinSave takes part in the Save of another rank, with the same maxShardBytes: it gathers the matrices that the ranks divide
// in an accum.Pages, and writes nothing. For a Config that cannot be written the error is that of Save. Another error of the
// rank that saves has to end the job, because the others wait for it.
func (m *Model) JoinSave(maxShardBytes int64) (err error) {
	defer fault.Named(&err, "transformer: JoinSave")
	_, err = m.merged(func(merge *merger) error { return amp.MakeShards(maxShardBytes, m.values(merge)) })
	return err
}
