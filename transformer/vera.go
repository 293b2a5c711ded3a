package transformer

import (
	"fmt"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/qlora"
)

// This file has adapters of VeRA: the vectors d and b of each, which are its parameters a and b, and the matrices that
// all share. An adapter expands to those of a LoRA before it computes.

// firstD is the first value of the elements of d, as in PEFT.
const firstD = 0.1

// loadVeRA reads adapters of VeRA from a folder. The result has their sizes.
func (m *Model) loadVeRA(dir string) (map[string]*qlora.LoRA, error) {
	var err error
	if m.adapters, m.vera, m.veraLayers, err = qlora.LoadVeRA(dir); err != nil {
		return nil, err
	}
	loaded := map[string]*qlora.LoRA{}
	for name, l := range m.veraLayers {
		loaded[name] = &qlora.LoRA{Out: l.B.Len(), Rank: m.adapters.Rank, Scale: 1, Dropout: m.adapters.Dropout}
	}
	return loaded, nil
}

// makeVeRA is makeAdapters for VeRA.
func (m *Model) makeVeRA(list []chosen) (err error) {
	if !m.dev.IsCPU() {
		return fmt.Errorf("adapters of VeRA work on the CPU, and the model is on %s: %w", m.dev.Name(), snug.ErrDevice)
	}
	in, out := 0, 0
	for _, c := range list {
		in, out = max(in, c.in), max(out, c.out)
	}
	if m.vera == nil {
		if m.vera, err = qlora.NewVeRA(m.adapters.Rank, in, out, m.adapters.VeRA.Key); err != nil {
			return err
		}
	}
	if m.vera.In < in || m.vera.Out < out {
		return fmt.Errorf("%s: shared matrices for %d inputs and %d outputs, and the model has %d and %d: %w", m.options.AdapterDir, m.vera.In, m.vera.Out, in, out, snug.ErrShape)
	}
	shared, _ := m.vera.Bytes()
	m.weightBytes += shared
	for i, c := range list {
		a := &adapter{Adapter: layers.Adapter{LoRA: &qlora.LoRA{In: c.in, Out: c.out, Rank: c.rank, Scale: 1, Dropout: m.adapters.Dropout, FrozenA: true}, Number: uint64(i), VeRA: m.vera}}
		layer, found := m.veraLayers[m.adapterName(c.module)]
		if found {
			m.weightBytes += int64(layer.D.Bytes() + layer.B.Bytes())
		} else if layer, err = m.firstVeRA(a); err != nil {
			return err
		}
		name := adapterPrefix + c.module
		a.ParamA = m.addParam(Param{Name: name + ".vera_lambda_d", Shape: []int{a.Rank}, Value: layer.D, Trains: true})
		a.ParamB = m.addParam(Param{Name: name + ".vera_lambda_b", Shape: []int{a.Out}, Value: layer.B, Trains: true})
		m.byModule[c.module+".weight"] = a
	}
	m.veraLayers = nil
	return nil
}

// firstVeRA makes the vectors of a fresh adapter.
func (m *Model) firstVeRA(a *adapter) (l qlora.VeRALayer, err error) {
	if l.D, err = m.makeVector(snug.F32, a.Rank); err != nil {
		return l, err
	}
	if l.B, err = m.makeVector(snug.F32, a.Out); err != nil {
		return l, err
	}
	d := make([]float32, a.Rank)
	for i := range d {
		d[i] = firstD
	}
	return l, snug.Copy(l.D, d)
}

func (m *Model) saveVeRA(dir string, o qlora.AdapterOptions) error {
	layers := map[string]qlora.VeRALayer{}
	for name, a := range m.byModule {
		layers[m.adapterName(strings.TrimSuffix(name, ".weight"))] = qlora.VeRALayer{D: a.ParamA.Value, B: a.ParamB.Value}
	}
	return qlora.SaveVeRA(dir, o, m.vera, layers, m.savedModules()...)
}
