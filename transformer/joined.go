package transformer

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/qlora"
)

// This file reads and writes files in which one tensor holds all experts of a layer: gate_up_proj and down_proj, in one of three forms.
// Their biases are [experts, 2·out] and [experts, out]. In MXFP4, which is byTurns, gate_up_proj_blocks is [experts, 2·out, in/32, 16],
// and its scales gate_up_proj_scales are [experts, 2·out, in/32]. A model has a parameter for each expert and each of gate, up and down.

// joinedForm says how a tensor has the matrices of all experts of a layer.
type joinedForm int

const (
	separate joinedForm = iota // each matrix is a tensor
	byTurns                    // gate_up_proj is [experts, in, 2·out], whose columns belong to gate and up by turns; down_proj [experts, in, out]
	columns                    // the same, with all columns of gate first
	rows                       // gate_up_proj is [experts, 2·out, in], with all rows of gate first; down_proj [experts, out, in]
)

// slot is the place of a parameter of an expert in a tensor of all experts. Element [o, i] of the parameter, [out, in], is number
// first + o·outStep + i·inStep of the expert's elements, whose shape is [high, wide].
type slot struct {
	tensor                 string
	expert                 int
	first, outStep, inStep int
	in, out                int // in is 1 for a bias
	high, wide             int
	bias                   bool
}

var expertName = regexp.MustCompile(`^(.*experts\.)([0-9]+)\.(gate_proj|up_proj|down_proj)\.(weight|bias)$`)

// slot returns the place of a parameter, and whether it is in a tensor of all experts.
func (c *Config) slot(name string) (s slot, joined bool) {
	form := c.names().experts.joined
	if c.joined {
		form = c.names().experts.joinable
	}
	if form == separate {
		return s, false
	}
	parts := expertName.FindStringSubmatch(name)
	if parts == nil {
		return s, false
	}
	s = slot{tensor: parts[1] + "gate_up_proj", in: c.Dim, out: c.Experts.Hidden, bias: parts[4] == "bias"}
	pair := 2
	if parts[3] == "down_proj" {
		s.tensor, s.in, s.out, pair = parts[1]+"down_proj", s.out, s.in, 1
	}
	s.expert, _ = strconv.Atoi(parts[2]) // up to maxExperts
	if s.bias {
		s.tensor, s.in = s.tensor+"_bias", 1
	}
	s.high, s.wide, s.outStep, s.inStep = s.in, pair*s.out, 1, pair*s.out
	switch form {
	case byTurns:
		s.outStep = pair
		s.first = 1
	case columns:
		s.first = s.out
	case rows:
		s.high, s.wide, s.outStep, s.inStep = pair*s.out, s.in, s.in, 1
		s.first = s.out * s.in
	}
	if parts[3] != "up_proj" {
		s.first = 0
	}
	return s, true
}

// isJoined reports whether an opened folder of a family that is joinable has one tensor for all experts of a layer.
func (c *Config) isJoined(w *amp.Weights) bool {
	n := c.names()
	return n.experts.joinable != separate && slices.ContainsFunc(w.Tensors(), func(t amp.Tensor) bool {
		return strings.HasSuffix(t.Name, "."+n.experts.experts+"gate_up_proj") && (n.beside == "" || !strings.HasPrefix(t.Name, n.beside))
	})
}

// size returns the elements of an expert in the tensor.
func (s slot) size() int { return s.high * s.wide }

// shape returns the shape of the tensor.
func (s slot) shape(c *Config) []int {
	if s.bias {
		return []int{c.Experts.Count, s.size()}
	}
	return []int{c.Experts.Count, s.high, s.wide}
}

// begins reports whether s is the first slot of its tensor.
func (s slot) begins() bool { return s.expert == 0 && s.first == 0 }

// inFiles returns the tensors in which files hold the parameters of a list.
func (c *Config) inFiles(list []amp.Tensor) []amp.Tensor {
	var files []amp.Tensor
	for _, t := range list {
		s, joined := c.slot(t.Name)
		switch {
		case !joined:
			files = append(files, t)
		case s.begins():
			files = append(files, amp.Tensor{Name: s.tensor, DType: t.DType, Shape: s.shape(c)})
		}
	}
	return files
}

// inFile returns the name of the tensor in which files hold a parameter.
func (c *Config) inFile(name string) string {
	if s, joined := c.slot(name); joined {
		return s.tensor
	}
	return name
}

// The ends of the names of tensors in MXFP4.
const blocksEnd, scalesEnd = "_blocks", "_scales"

// blocksOf returns the MXFP4 tensors that an opened folder has in place of a tensor of all experts, and the MXFP4
// tensors that it should have. Both are nil if the folder has the tensor itself.
func (c *Config) blocksOf(w *amp.Weights, want amp.Tensor) (have, blocks []amp.Tensor) {
	if c.Stored != qlora.MXFP4 || len(want.Shape) != 3 {
		return nil, nil
	}
	if _, found := w.Tensor(want.Name + blocksEnd); !found {
		return nil, nil
	}
	experts, in, out := want.Shape[0], want.Shape[1], want.Shape[2]
	blocks = []amp.Tensor{
		{Name: want.Name + blocksEnd, DType: "U8", Shape: []int{experts, out, in / 32, 16}},
		{Name: want.Name + scalesEnd, DType: "U8", Shape: []int{experts, out, in / 32}},
	}
	for _, b := range blocks {
		t, _ := w.Tensor(b.Name)
		have = append(have, t)
	}
	return have, blocks
}

// loadSlot reads a parameter of an expert into v, in the model's type, on any device. On the host it takes the memory
// of all parameters of the expert that share rows: gate and up.
func (q *quantizer) loadSlot(w *amp.Weights, name string, s slot, v snug.View) (err error) {
	n := s.size()
	if q.joined, err = q.stage(q.joined, snug.CPU(), n+v.Len()); err != nil {
		return err
	}
	all := part(q.joined, 0, n)
	if err := w.LoadAt(name, s.expert*n, all); err != nil {
		return err
	}
	picked := v
	if !v.Device().IsCPU() {
		picked = part(q.joined, n, v.Len())
	}
	if err := s.move(all, picked, false); err != nil {
		return err
	}
	return snug.Copy(v, picked)
}

// move copies between the elements of an expert and a parameter, [out, in], on the CPU: from the expert's, or to
// them.
func (s slot) move(rows, param snug.View, toRows bool) error {
	switch rows.DType() {
	case snug.F32:
		moveSlot(s, rows.Float32s(), param.Float32s(), toRows)
	case snug.BF16:
		moveSlot(s, rows.BFloat16s(), param.BFloat16s(), toRows)
	case snug.F16:
		moveSlot(s, rows.Float16s(), param.Float16s(), toRows)
	default:
		return fmt.Errorf("a matrix of %s: %w", rows.DType(), snug.ErrDType)
	}
	return nil
}

func moveSlot[T any](s slot, rows, param []T, toRows bool) {
	const tile = 32
	for i := 0; i < s.in; i += tile {
		for o := 0; o < s.out; o += tile {
			for r := i; r < min(i+tile, s.in); r++ {
				for c := o; c < min(o+tile, s.out); c++ {
					at := s.first + c*s.outStep + r*s.inStep
					if toRows {
						rows[at] = param[c*s.in+r]
					} else {
						param[c*s.in+r] = rows[at]
					}
				}
			}
		}
	}
}

// join returns the tensor of all experts to which s belongs, on the CPU. It takes the memory of the tensor.
func (g *merger) join(s slot) (_ snug.View, err error) {
	shape := s.shape(&g.config)
	n := 1
	for _, d := range shape {
		n *= d
	}
	largest := s.size()
	if g.joined, err = g.stage(g.joined, snug.CPU(), n+largest); err != nil {
		return snug.View{}, err
	}
	all, host := part(g.joined, 0, n), part(g.joined, n, s.out*s.in)
	if g.members == nil {
		g.members = map[string][]*Param{}
		for i := range g.params {
			p := &g.params[i]
			if at, joined := g.config.slot(p.Name); joined && !g.adapted(p) {
				g.members[at.tensor] = append(g.members[at.tensor], p)
			}
		}
	}
	for _, p := range g.members[s.tensor] {
		at, _ := g.config.slot(p.Name)
		v, err := g.value(p)
		if err == nil && !v.Device().IsCPU() {
			err = snug.Copy(host, v)
			v = host
		}
		if err == nil {
			err = at.move(part(all, at.expert*largest, largest), v, true)
		}
		if err != nil {
			return snug.View{}, fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	return all, nil
}
