package state

import (
	"fmt"
	"math"
)

// MastersMagic names the state of master weights of package amp.
const MastersMagic = "SNUGMAST"

// Masters is the header of the state of master weights. The data follows, parameter
// by parameter, in the order of the header.
type Masters struct {
	Form   uint32 // amp.MasterForm, or Stochastic24
	Seed   uint64
	Params []Master // by ascending names
}

// Master is one parameter.
type Master struct {
	Name       string
	N, Updates uint64
}

// Stochastic24 is the Form of amp.Split24Master with random rounding.
const Stochastic24 = 4

// masterTypes are the types of what the forms keep, and the bytes of an element.
var masterTypes = []struct {
	name string
	size int64
}{{"f32", 4}, {"lower halves of f32", 2}, {"nothing", 0}, {"bits 8 to 15 of f32", 1}, {"bits 8 to 15 of f32", 1}}

// PutMasters writes m.
func (e *Encoder) PutMasters(m *Masters) {
	e.Put(m.Form)
	e.Put(m.Seed)
	e.Put(uint32(len(m.Params)))
	for _, p := range m.Params {
		e.PutName(p.Name)
		e.Put([]uint64{p.N, p.Updates})
	}
}

// GetMasters reads and checks what PutMasters wrote.
func (d *Decoder) GetMasters() (m Masters) {
	d.Get(&m.Form)
	d.Get(&m.Seed)
	if m.Form >= uint32(len(masterTypes)) {
		d.Corrupt("form %d of masters", m.Form)
	}
	last := ""
	for i := range d.Count(4 + 16) {
		p := Master{Name: d.GetName()}
		d.Get(&p.N)
		d.Get(&p.Updates)
		if p.N > math.MaxInt/4 || i > 0 && p.Name <= last {
			d.Corrupt("parameter %q of %d elements", p.Name, p.N)
		}
		if d.Err != nil {
			break
		}
		last, m.Params = p.Name, append(m.Params, p)
	}
	d.endHeader()
	return m
}

func describeMasters(d *Decoder) (found Description) {
	m := d.GetMasters()
	for _, p := range m.Params {
		kept := masterTypes[m.Form]
		found.Entries = append(found.Entries, Entry{p.Name, kept.name, []int{int(p.N)}, int64(p.N) * kept.size})
	}
	found.Note = fmt.Sprintf("%d parameters", len(m.Params))
	return found
}
