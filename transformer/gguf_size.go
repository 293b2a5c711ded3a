package transformer

import (
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/saturate"
)

// GGUFSize returns what [Model.SaveGGUF] writes and takes, as [Model.SaveSize] does for Save: Bytes is the size of the file. The
// metadata themselves are the caller's, and not counted in Memory. Errors are those of [Config.GGUF] and of [gguf.FileSize].
func (m *Model) GGUFSize(o GGUFOptions) (s SaveSize, err error) {
	defer fault.Named(&err, "transformer: GGUFSize")
	if err := m.opened(); err != nil {
		return s, err
	}
	g, err := m.describeGGUF(o)
	if err != nil {
		return s, err
	}
	read := int64(0)
	if m.dtype != snug.F32 {
		read = int64(m.dtype.Size())
	}
	if s, err = g.size(o.Metadata, read); err != nil {
		return SaveSize{}, err
	}
	whole := func(p *Param) bool { return !m.folder.inPieces(p) }
	held := saturate.Add(m.heldToSave(), saturate.Add(m.workToSave(whole), mergeBytes))
	s.Memory = saturate.Add(held, s.Memory)
	return s, nil
}

// size returns what writing a file takes besides the parameters, whose elements take so many bytes as they are read, 0 if they are read as
// float32.
func (g *GGUF) size(metadata []gguf.Pair, read int64) (s SaveSize, err error) {
	if s.Bytes, err = gguf.FileSize(slices.Concat(g.Metadata, metadata), g.Tensors); err != nil {
		return SaveSize{}, err
	}
	var all, values, turned, encoded int64
	for i, t := range g.Tensors {
		n, err := t.Bytes()
		if err != nil {
			return SaveSize{}, err
		}
		all = saturate.Add(all, n)
		s.Largest = max(s.Largest, n)
		p := &g.parts[i]
		if p.values != nil {
			continue
		}
		rows, cols, step := p.pieces()
		piece := int64(min(rows, step)) * int64(cols)
		values = max(values, piece)
		if p.transposed || p.pairs > 0 {
			turned = max(turned, piece)
		}
		if n, err = t.Type.Bytes(int(piece)); err != nil {
			return SaveSize{}, err
		}
		encoded = max(encoded, n)
	}
	const head = 3 // copies of what the file begins with, while they grow
	work := (ggufPieces*4+read)*values + 4*turned + encoded
	s.Memory = work + work/4 + head*(s.Bytes-all) // slices grow by up to a quarter more
	return s, nil
}
