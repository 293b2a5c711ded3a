package transformer

import (
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/saturate"
)

// SaveSize is what [Model.Save] writes and takes, in bytes.
type SaveSize struct {
	Bytes   int64 // tensors in the files
	Largest int64 // the largest tensor of them
	Memory  int64 // what the model takes at most while it is saved, before the first Save as after it
}

// What merging takes for a tile of a matrix, in bytes: its elements in float32, and two copies to count lost updates, up to 12 bytes an
// element of the tile, and what is left of the tiles of earlier matrices until it is collected.
const mergeTile = 1 << 18
const mergeBytes = 2 * 16 * mergeTile

// SaveSize returns what Save writes and takes. With Options.SaveOnly Memory is adapters, vectors and what ModulesToSave replace, and the
// largest matrix; matrices that are quantized or that files hold in one tensor for all experts take up to that once more. It is an estimate
// within some megabytes. The zero SaveSize is that of a model that is closed.
func (m *Model) SaveSize() (s SaveSize) {
	if m.opened() != nil {
		return s
	}
	for t := range m.values(&merger{Model: m}) {
		s.Bytes = saturate.Add(s.Bytes, t.Bytes())
		s.Largest = max(s.Largest, t.Bytes())
	}
	s.Memory = saturate.Add(m.heldToSave(), saturate.Add(m.workToSave(func(*Param) bool { return true }), mergeBytes))
	return s
}

// heldToSave returns the bytes that this model and those with its earlier adapters hold.
func (m *Model) heldToSave() (bytes int64) {
	bytes = m.weightBytes + m.Memory().Workspace
	if m.folder != nil {
		bytes -= m.folder.held() // which workToSave counts
		if s, is := m.folder.from.(*ggufSource); is {
			bytes = saturate.Add(bytes, s.held())
		}
		if m.folder.before != nil {
			bytes = saturate.Add(bytes, m.folder.before.heldToSave())
		}
	}
	return bytes
}

// workToSave returns the bytes that matrices take while they are merged, of those that are in memory as a whole.
func (m *Model) workToSave(whole func(p *Param) bool) int64 {
	elem := int64(m.dtype.Size())
	if m.folder != nil && m.folder.before != nil {
		return m.folder.before.workToSave(whole) + m.joinToSave()*elem
	}
	single, quantized := int64(0), int64(0)
	for i := range m.params {
		p := &m.params[i]
		n := int64(p.Len())
		if m.adapted(p) || !whole(p) {
			continue
		}
		if m.stays(p) || m.matrices[p] != nil && m.matrices[p].Adapter != nil {
			single = max(single, n)
		}
		if m.isQuantized(p) {
			copies := int64(2) // as it was read, and in few bits
			if m.conv() {
				copies = 5
			}
			single, quantized = max(single, n), max(quantized, copies*n)
		}
	}
	return (single + quantized + m.joinToSave()) * elem
}

// joinToSave returns the elements of the tensors of all experts, with the rows of one.
func (m *Model) joinToSave() (most int64) {
	for i := range m.params {
		s, joined := m.config.slot(m.params[i].Name)
		if !joined {
			continue
		}
		n := int64(amp.Tensor{Shape: s.shape(&m.config)}.Len())
		most = max(most, n+2*int64(s.size()))
	}
	return most
}
