package state

import (
	"fmt"
	"math"
)

// BuffersMagic names the state of the buffers of a model of package train.
const BuffersMagic = "SNUGBUFF"

// Buffer is one of them. The header has all, and their elements follow in its order, as f32.
type Buffer struct {
	Name string
	N    uint64
}

// PutBuffers writes the header.
func (e *Encoder) PutBuffers(list []Buffer) {
	e.Put(uint32(len(list)))
	for _, b := range list {
		e.PutName(b.Name)
		e.Put(b.N)
	}
}

// GetBuffers reads and checks what PutBuffers wrote.
func (d *Decoder) GetBuffers() (list []Buffer) {
	for range d.Count(4 + 8) {
		b := Buffer{Name: d.GetName()}
		if d.Get(&b.N); b.N > math.MaxInt/4 {
			d.Corrupt("a buffer %q of %d elements", b.Name, b.N)
		}
		if d.Err != nil {
			return nil
		}
		list = append(list, b)
	}
	d.endHeader()
	return list
}

func describeBuffers(d *Decoder) (found Description) {
	for _, b := range d.GetBuffers() {
		found.Entries = append(found.Entries, Entry{b.Name, "f32", []int{int(b.N)}, 4 * int64(b.N)})
	}
	found.Note = fmt.Sprintf("%d buffers", len(found.Entries))
	return found
}
