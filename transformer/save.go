package transformer

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug/amp"
)

// Save writes a folder that transformers loads: config.json and the weights in the model's type. It decodes matrices in
// 4 bits and merges adapters, W + s·B·A, with rows scaled to their magnitudes if there are any, and rounds once. A file
// of weights has at most maxShardBytes bytes of tensors; 0 is 5 GB. See [amp.SaveShards] for what a killed process
// leaves. The error wraps [snug.ErrConfig], with nothing written, when config.json has no fields for the model, see
// [Config.Write].
//
// If the ranks of data-parallel training divide the matrices, one rank calls Save, and the others call [Model.JoinSave].
func (m *Model) Save(dir string, maxShardBytes int64) error {
	if err := m.usable(); err != nil {
		return fmt.Errorf("transformer: Save: %w", err)
	}
	c := m.config
	c.DType = m.dtype
	if _, err := c.encode(); err != nil { // before the weights of the folder are replaced
		return fmt.Errorf("transformer: Save: %w", err)
	}
	merge := &merger{Model: m}
	err := amp.SaveShards(dir, maxShardBytes, m.values(merge), map[string]string{"format": "pt"})
	if err = errors.Join(err, merge.close(), m.freeStaging()); err != nil {
		return fmt.Errorf("transformer: Save: %w", err)
	}
	return c.Write(dir)
}

// JoinSave takes part in the Save of another rank, with the same maxShardBytes: it gathers the matrices that the ranks divide
// in an accum.Pages, and writes nothing. For a Config that cannot be written the error is that of Save. Another error of the
// rank that saves has to end the job, because the others wait for it.
func (m *Model) JoinSave(maxShardBytes int64) error {
	if err := m.usable(); err != nil {
		return fmt.Errorf("transformer: JoinSave: %w", err)
	}
	c := m.config
	c.DType = m.dtype
	if _, err := c.encode(); err != nil { // as Save does, which then gathers nothing
		return fmt.Errorf("transformer: JoinSave: %w", err)
	}
	merge := &merger{Model: m}
	if err := errors.Join(amp.MakeShards(maxShardBytes, m.values(merge)), merge.close(), m.freeStaging()); err != nil {
		return fmt.Errorf("transformer: JoinSave: %w", err)
	}
	return nil
}
