package main

import (
	"strings"

	"github.com/snug-ml/snug/conv"
)

// sizes are the shapes of the kernels.
type sizes struct {
	lens []int // of vectors: in a core's cache, in the shared cache, and beyond

	squares []int    // matmul: of square products
	rows    []int    // of products with a weight of width × width
	width   int      // of that weight
	many    []int    // rows of products by a weight in 4 bits, on a device
	ops     []string // what is stored transposed

	seqs, dims []int // attention: sequence lengths and head dims
	positions  int   // sequence length times heads

	layers []shape // of activations
	loss   shape   // of what the cross-entropy takes
	images int     // of convolutions

	layouts []conv.Layout // of their images
	vocab   int           // rows of embedding tables and of the output layer

	chains []chainSize // of training passes under budgets of memory

	presets []preset    // of whole training steps; building their program takes too long for -short
	tunes   []tuneModel // to fine-tune
	largest int         // working set that stands for memory, in bytes
}

type shape struct{ rows, cols int }

// sizes returns what the flags ask for. An emulator runs a thousand times
// slower than a GPU, whose work must be larger than a processor's to fill it.
func (o options) sizes() sizes {
	s := o.kernelSizes()
	s.tunes = o.tuneSizes()
	return s
}

// tuneSizes returns the model to fine-tune, if the flags ask for it by name.
func (o options) tuneSizes() []tuneModel {
	if o.only == nil || !strings.Contains(o.only.String(), "tune") || !o.onCPU() {
		return nil
	}
	m := tuneModels[len(tuneModels)-1]
	if o.short {
		m = tuneModels[0]
	}
	for _, named := range tuneModels {
		if named.name == o.model {
			m = named
		}
	}
	if o.long {
		m.longer = append(m.longer[:len(m.longer):len(m.longer)], longest)
	}
	return []tuneModel{m}
}

func (o options) kernelSizes() (s sizes) {
	switch {
	case o.emulated():
		return sizes{
			lens:    []int{1 << 10},
			squares: []int{32}, rows: []int{8}, width: 64, many: []int{64}, ops: []string{"nn", "nt"},
			seqs: []int{32}, dims: []int{64}, positions: 64,
			layers: []shape{{16, 128}}, loss: shape{16, 64}, vocab: 512, images: 1, layouts: []conv.Layout{conv.ChannelsFirst},
		}
	case o.short && o.onCPU():
		return sizes{
			lens:    []int{1 << 14, 1 << 20},
			squares: []int{128, 512}, rows: []int{16}, width: 1024, ops: []string{"nn", "nt"},
			seqs: []int{1 << 9}, dims: []int{64}, positions: 1 << 10,
			layers: []shape{{128, 512}}, loss: shape{128, 128}, vocab: vocabulary, images: 1, layouts: []conv.Layout{conv.ChannelsFirst},
			chains:  shortChains,
			largest: 1 << 25,
		}
	case o.short:
		return sizes{
			lens:    []int{1 << 20, 1 << 24},
			squares: []int{1024, 4096}, rows: []int{16}, width: 4096, many: []int{512}, ops: []string{"nn", "nt"},
			seqs: []int{1 << 11}, dims: []int{64}, positions: 1 << 15,
			layers: []shape{{8192, 1024}}, loss: shape{1024, 1024}, vocab: vocabulary, images: 1, layouts: []conv.Layout{conv.ChannelsFirst},
			largest: 1 << 28,
		}
	}
	s = sizes{
		lens:    []int{1 << 14, 1 << 20, 1 << 26},
		squares: []int{128, 256, 512, 1024, 2048}, rows: []int{8, 16, 32, 64}, width: 2048, ops: []string{"nn", "nt", "tn", "tt"},
		seqs: []int{1 << 10, 1 << 11, 1 << 12, 1 << 13}, dims: []int{64, 128}, positions: 1 << 14,
		layers: []shape{{128, 512}, {1024, 1024}, {32768, 1024}}, loss: shape{1024, 512}, vocab: vocabulary, images: 8, layouts: []conv.Layout{conv.ChannelsFirst, conv.ChannelsLast},
		chains: chains, presets: presets, largest: largest,
	}
	if !o.onCPU() {
		s.squares, s.width, s.positions, s.loss = []int{512, 1024, 2048, 4096, 8192}, 4096, 1<<16, shape{4096, 1024}
		s.many = []int{128, 192, 256, 384, 512, 768, 1024, 2048, 4096}
	}
	if o.long {
		s.seqs = append(s.seqs, 1<<14)
		if o.onCPU() {
			s.squares = append(s.squares, 4096)
		}
	}
	return s
}

// vocabulary is also what the peers' worker takes.
const vocabulary = 16384
