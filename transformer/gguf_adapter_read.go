package transformer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/qlora"
)

// This file reads the LoRA adapters that gguf_adapter.go writes, and llama.cpp's convert_lora_to_gguf.py.

// loadGGUFAdapters reads the adapters of a file, by PEFT's names of their modules, and sets m.adapters to a config that has them.
func (m *Model) loadGGUFAdapters(path string) (loaded map[string]*qlora.LoRA, err error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			loaded, err = nil, fmt.Errorf("%s: %w", path, err)
		}
	}()
	model, err := m.config.describe("f32")
	if err != nil {
		return nil, err
	}
	alpha, err := checkAdapterFile(f, model.Metadata[0].Value)
	if err != nil {
		return nil, err
	}
	tensors := map[string]gguf.Tensor{}
	for _, t := range f.Tensors() {
		tensors[t.Name] = t
	}
	m.chooseNames(nil)
	loaded = map[string]*qlora.LoRA{}
	for i, t := range model.Tensors {
		a, foundA := tensors[t.Name+".lora_a"]
		b, foundB := tensors[t.Name+".lora_b"]
		if !foundA && !foundB {
			continue
		}
		if foundA != foundB {
			return nil, fmt.Errorf("of %s it has one of lora_a and lora_b: %w", t.Name, snug.ErrCorrupt)
		}
		delete(tensors, a.Name)
		delete(tensors, b.Name)
		if err := m.loadGGUFAdapter(loaded, f, &model.parts[i], t, a, b, alpha); err != nil {
			return nil, fmt.Errorf("%s: %w", t.Name, err)
		}
	}
	if len(tensors) > 0 {
		return nil, fmt.Errorf("it has the tensor %q, which is no adapter of a matrix of the model: %w", slices.Sorted(maps.Keys(tensors))[0], snug.ErrConfig)
	}
	if len(loaded) == 0 {
		return nil, fmt.Errorf("it has no adapters: %w", snug.ErrCorrupt)
	}
	m.adapters = optionsOf(loaded, alpha)
	return loaded, nil
}

// checkAdapterFile returns the alpha of a file, 0 if the scale is 1 for every rank, or an error unless it has LoRA adapters of an architecture.
func checkAdapterFile(f *gguf.File, arch any) (alpha float32, err error) {
	for _, want := range []gguf.Pair{{Key: "general.type", Value: "adapter"}, {Key: "adapter.type", Value: "lora"}, {Key: "general.architecture", Value: arch}} {
		if have, _ := f.Value(want.Key); have != want.Value {
			return 0, fmt.Errorf("%s is %.100q, want %q: %w", want.Key, fmt.Sprint(have), want.Value, snug.ErrConfig)
		}
	}
	if _, found := f.Value("adapter.alora.invocation_tokens"); found {
		return 0, fmt.Errorf("its adapters begin at certain tokens (adapter.alora.invocation_tokens): not supported: %w", snug.ErrConfig)
	}
	value, found := f.Value("adapter.lora.alpha")
	if !found {
		return 0, nil
	}
	alpha, is := value.(float32)
	if !is || !(alpha >= 0) || alpha-alpha != 0 {
		return 0, fmt.Errorf("adapter.lora.alpha is %.100q, want a finite number of 0 or more: %w", fmt.Sprint(value), snug.ErrCorrupt)
	}
	return alpha, nil
}

// optionsOf returns the config of adapters whose scales are alpha/rank, or 1 if alpha is 0.
func optionsOf(loaded map[string]*qlora.LoRA, alpha float32) qlora.AdapterOptions {
	names := slices.Sorted(maps.Keys(loaded))
	first := loaded[names[0]]
	o := qlora.AdapterOptions{Rank: first.Rank, Alpha: alpha, Targets: qlora.Modules{Names: names}}
	if alpha == 0 {
		o.Alpha = float32(first.Rank)
	}
	for _, name := range names {
		if r := loaded[name].Rank; r != first.Rank {
			if o.Ranks == nil {
				o.Ranks, o.Alphas = map[string]int{}, map[string]float32{}
			}
			if o.Ranks[name] = r; alpha == 0 {
				o.Alphas[name] = float32(r)
			}
		}
	}
	return o
}

// loadGGUFAdapter reads the adapters of the parameters of a tensor.
func (m *Model) loadGGUFAdapter(loaded map[string]*qlora.LoRA, f *gguf.File, p *ggufPart, of, a, b gguf.Tensor, alpha float32) error {
	if len(of.Shape) < 2 {
		return fmt.Errorf("it is of a vector, and adapters are of matrices: %w", snug.ErrShape)
	}
	isTable := of.Name == "token_embd.weight"
	if isTable && m.config.Tied {
		return fmt.Errorf("it is embedding and head in one, and the adapter is of the embedding: not supported: %w", snug.ErrConfig)
	}
	rank := 0
	if n := len(b.Shape); n > 0 {
		rank = b.Shape[n-1]
	}
	outer := of.Shape[:len(of.Shape)-2] // experts
	wantA, wantB := append(slices.Clone(outer), rank, p.cols), append(slices.Clone(outer), p.rows, rank)
	if isTable {
		wantA, wantB = []int{p.rows, rank}, []int{p.cols, rank}
	}
	if rank < 1 || !slices.Equal(a.Shape, wantA) || !slices.Equal(b.Shape, wantB) {
		return fmt.Errorf("lora_a is %v and lora_b %v, want %v and %v: %w", a.Shape, b.Shape, wantA, wantB, snug.ErrShape)
	}
	allA, err := readFloats(f, a)
	if err != nil {
		return err
	}
	allB, err := readFloats(f, b)
	if err != nil {
		return err
	}
	sizeA, sizeB := rank*p.cols, p.rows*rank
	if isTable {
		sizeA, sizeB = p.rows*rank, p.cols*rank
	}
	for i, param := range p.params {
		l := &qlora.LoRA{In: p.cols, Out: p.rows, Rank: rank, Scale: 1, Embedding: isTable}
		if alpha != 0 {
			l.Scale = qlora.LoRAScale(alpha, rank, false)
		}
		lowA, lowB := allA[i*sizeA:][:sizeA], allB[i*sizeB:][:sizeB]
		switch {
		case isTable:
			l.In, l.Out = p.rows, p.cols
			turned := make([]float32, sizeA)
			turn(turned, lowA, p.rows, rank)
			lowA = turned
		case p.pairs > 0:
			ordered := make([]float32, sizeB)
			for row := range p.rows {
				copy(ordered[row*rank:][:rank], lowB[p.paired(row)*rank:])
			}
			lowB = ordered
		}
		if err := m.hold(l, lowA, lowB); err != nil {
			return err
		}
		loaded[m.adapterName(strings.TrimSuffix(param, ".weight"))] = l
	}
	return nil
}

// hold sets the matrices of an adapter, on the device of the model. makeAdapters counts their bytes.
func (m *Model) hold(l *qlora.LoRA, a, b []float32) error {
	for _, x := range []struct {
		to     *snug.View
		values []float32
	}{{&l.A, a}, {&l.B, b}} {
		v, free, err := snug.MakeView(m.dev, snug.F32, len(x.values))
		if err != nil {
			return err
		}
		*x.to, m.free = v, append(m.free, free)
		if err := snug.Copy(v, x.values); err != nil {
			return err
		}
	}
	return nil
}

// readFloats returns the elements of a tensor.
func readFloats(f *gguf.File, t gguf.Tensor) ([]float32, error) {
	size, err := t.Bytes()
	if err != nil {
		return nil, err
	}
	text := make([]byte, size)
	if err := f.ReadAt(t.Name, text, 0); err != nil {
		return nil, err
	}
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	x := make([]float32, n)
	if err := t.Type.Decode(x, text); err != nil {
		return nil, err
	}
	for i, v := range x {
		if v-v != 0 {
			return nil, fmt.Errorf("%s: element %d is not finite: %w", t.Name, i, snug.ErrNonFinite)
		}
	}
	return x, nil
}
