package train

import (
	"errors"
	"fmt"
	"hash/fnv"
	"runtime/debug"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/crc32c"
	"github.com/snug-ml/snug/internal/device"
)

// This file compares the ranks.

// alike returns an error unless all ranks have the same options, and parameters of the same names, lengths and types.
func (t *Trainer[B]) alike() error {
	r, o := &t.ranks, &t.options
	if !r.many {
		return nil
	}
	params := fnv.New32a()
	for _, p := range t.params {
		fmt.Fprintf(params, "%q %d %s\n", p.name, p.n, p.value.DType())
	}
	for _, b := range t.buffers.list {
		fmt.Fprintf(params, "buffer %q %d\n", b.name, len(b.kept))
	}
	scaler, run := amp.ScalerOptions{}, []byte(nil)
	if o.Scaler != nil {
		scaler = *o.Scaler
	}
	run, err := toJSON(o.About)
	if err != nil {
		return err
	}
	single, first, err := t.ofParameters()
	if err != nil {
		return err
	}
	_, stateful := t.model.(Stateful)
	compared := []struct {
		name  string
		value any
	}{
		{"Optimizer", fmt.Sprintf("%T%+v", o.Optimizer, o.Optimizer)}, {"StateBits", o.StateBits}, {"Clip", o.Clip}, {"Masters", o.masters()},
		{"Seed", o.Seed}, {"SkipNonFinite", o.SkipNonFinite}, {"Measure", o.Measure}, {"CountLost", o.CountLost}, {"Chunk", o.Chunk}, {"Bucket", o.Bucket},
		{"Shard", o.Shard}, {"SaveEvery", o.SaveEvery}, {"Scaler", fmt.Sprint(o.Scaler != nil, scaler)}, {"list of parameters and buffers", params.Sum32()},
		{"Params", single}, {"Fill", first}, {aboutOption, string(run)}, {"build of snug", build()},
		{"kind of model (Stateful or not)", stateful},
	}
	// Each rank fills in its own numbers only, so the sums hold the numbers of all ranks.
	sums := make([]float64, len(compared)*r.Size())
	for i, c := range compared {
		text := fnv.New32a()
		fmt.Fprint(text, c.value)
		sums[i*r.Size()+r.Rank()] = float64(text.Sum32())
	}
	if err := r.Sum(sums); err != nil {
		return err
	}
	for i, c := range compared {
		rank := differs(sums[i*r.Size():][:r.Size()])
		if rank == 0 {
			continue
		}
		err := fmt.Errorf("rank %d has another %s than rank 0: %w", rank, c.name, snug.ErrConfig)
		if all, ok := r.Reducer.(accum.Broadcaster); ok && c.name == aboutOption {
			return errors.Join(err, t.aboutOf0(all, run))
		}
		return err
	}
	return nil
}

// build returns the version of snug in this program and, of a program of snug itself, the commit.
func build() string {
	const path = "github.com/snug-ml/snug"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == path {
			return fmt.Sprint(m.Version, m.Sum)
		}
	}
	text := info.Main.Version
	for _, s := range info.Settings {
		if info.Main.Path == path && strings.HasPrefix(s.Key, "vcs.") {
			text += " " + s.Key + "=" + s.Value
		}
	}
	return text
}

const aboutOption = "About (model, data and the like)"

// aboutOf0 returns, on other ranks, how their About differs from that of rank 0.
func (t *Trainer[B]) aboutOf0(all accum.Broadcaster, own []byte) error {
	first := own
	length := t.ranks.flags[:1]
	if length[0] = float64(len(own)); t.options.follows() {
		length[0] = 0
	}
	if err := t.ranks.Sum(length); err != nil {
		return err
	}
	if t.options.follows() {
		first = make([]byte, int(length[0]))
	}
	if err := all.Broadcast(0, snug.SliceView(first)); err != nil {
		return err
	}
	return sameRun(first, own)
}

// ofParameters returns checksums of Options.Params for all parameters, and of the first values of Options.Fill.
func (t *Trainer[B]) ofParameters() (single, first uint32, err error) {
	options, values := fnv.New32a(), uint32(0)
	w := make([]float32, 1024)
	for _, p := range t.params {
		if t.options.Params != nil {
			fmt.Fprintf(options, "%q %+v\n", p.name, t.options.Params(p.name))
		}
		if t.options.Fill == nil || !p.mastered {
			continue
		}
		fill, part := t.options.Fill(p.name), snug.ViewOf(w[:min(len(w), p.n)])
		if fill == nil {
			continue
		}
		if err := fill(0, part.Float32s()); err != nil {
			return 0, 0, fmt.Errorf("the first values of %q: %w", p.name, err)
		}
		values = crc32c.Update(values, device.Mem(&part).Bytes())
	}
	return options.Sum32(), values, nil
}

// differs returns the first rank whose number differs from rank 0's, or 0.
func differs(numbers []float64) int {
	for rank, x := range numbers {
		if x != numbers[0] {
			return rank
		}
	}
	return 0
}

// equal returns an error unless all ranks have the same values of the parameters.
func (t *Trainer[B]) equal() error {
	if !t.ranks.many {
		return nil
	}
	values := uint32(0)
	sum := func(v snug.View) error {
		return inPieces(v, func(host, part snug.View, b []byte) error {
			err := snug.Copy(host, part)
			values = crc32c.Update(values, b)
			return err
		})
	}
	for _, p := range t.params { // an accum.Pages compares what the ranks write to it
		if err := sum(p.value); err != nil {
			return err
		}
	}
	if err := t.buffers.each(func(b buffer) error { return sum(b.value) }); err != nil {
		return err
	}
	all, err := t.ranks.each(float64(values))
	if err != nil {
		return err
	}
	if rank := differs(all); rank > 0 {
		return fmt.Errorf("rank %d has other values of parameters than rank 0, or of buffers: %w", rank, snug.ErrConfig)
	}
	return nil
}
