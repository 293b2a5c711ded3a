package transformer

// adapterBytes are the bytes that an adapter holds for a row, of linear layers that share an input the largest.
type adapterBytes struct {
	forward, backward int64 // u, du, the dropped input, and with DoRA the output before the magnitudes
	second            int64 // the gradient of the input, which cannot be written over the input
}

// adapterBytes returns the bytes of layers that share an input. adds: the products are added to the residual stream.
func (m *Model) adapterBytes(layers []linear, adds bool) (b adapterBytes) {
	size := int64(m.dtype.Size())
	inner := int64(0) // of all adapters whose A are frozen: they compute u before the gradient overwrites the input
	for i := range layers {
		a := layers[i].adapter
		if a == nil {
			continue
		}
		u, second := size*int64(a.Rank), size*int64(a.In)
		forward, backward := u, 2*u
		if a.FrozenA {
			backward, second = u, 0
			inner += u
		}
		if a.Dropout > 0 {
			forward, backward = forward+size*int64(a.In), backward+size*int64(a.In)
		}
		if a.m != nil {
			backward += size * int64(a.Out)
			if adds {
				forward += size * int64(a.Out)
			}
		}
		b = adapterBytes{max(b.forward, forward), max(b.backward, backward), second}
	}
	b.backward += inner
	return b
}
