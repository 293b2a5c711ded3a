package train

import (
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/checkpoint"
	"github.com/snug-ml/snug/plan"
	"github.com/x448/float16"
)

// about is what a checkpoint says about its run. All fields except Notes and Begun must be equal in a process that
// resumes it.
type about struct {
	Run        json.RawMessage `json:"run"`        // Options.About
	Notes      json.RawMessage `json:"notes"`      // of Trainer.SetNotes
	Parameters string          `json:"parameters"` // SHA-256 of names, lengths and types
	Masters    string          `json:"masters"`    // form of master weights
	StateBits  int             `json:"state_bits"`
	InBackward bool            `json:"in_backward"`
	Fold       bool            `json:"fold"`
	Begun      bool            `json:"begun,omitempty"` // the optimizer has begun the next step
}

// The parts of a checkpoint.
const (
	weightsPart   = "weights"   // the parameters, except those that FullMaster holds
	mastersPart   = "masters"   // amp.Master
	optimizerPart = "optimizer" // quant8.Optimizer, or quant8.ZerothOrder
	scalerPart    = "scaler"    // amp.Scaler
	modelPart     = "model"     // what Stateful writes
)

// maxSmall is the maximum size in bytes of the state of a scaler or of MeZO.
const maxSmall = 1 << 16

func (t *Trainer[B]) describe() (about, error) {
	run, err := toJSON(t.options.About)
	if err != nil {
		return about{}, err
	}
	notes, err := toJSON(t.notes)
	if err != nil {
		return about{}, err
	}
	sum := sha256.New()
	for _, p := range t.params {
		fmt.Fprintf(sum, "%q %d %s\n", p.name, p.n, p.value.DType())
	}
	return about{run, notes, hex.EncodeToString(sum.Sum(nil)), t.options.masters(), t.options.StateBits, t.options.inBackward(), t.options.Gradients == plan.Folded, t.begun}, nil
}

// masters returns the name of the form of master weights, with the way in which it rounds.
func (o *Options) masters() string {
	if o.Stochastic {
		return o.Masters.String() + " stochastic"
	}
	return o.Masters.String()
}

// begin gives master weights their first values, or restores the newest checkpoint.
func (t *Trainer[B]) begin() error {
	if t.options.Reducer != nil {
		return t.beginTogether()
	}
	if t.folder == nil || t.folder.Newest() == nil {
		return t.addMasters()
	}
	found := t.folder.Newest()
	if err := t.restore(); err != nil {
		return fmt.Errorf("the checkpoint %s: %w", found.Path(), err)
	}
	t.resumed(found.Step, t.options.Folder.about.Begun)
	return nil
}

func (t *Trainer[B]) resumed(step int, begun bool) { t.step, t.saved, t.begun = step, step, begun }

// addMasters gives master weights their first values.
func (t *Trainer[B]) addMasters() error {
	for _, p := range t.params {
		if err := t.addMaster(p, t.options.Fill); err != nil {
			return err
		}
	}
	return nil
}

func (t *Trainer[B]) addMaster(p param, fill func(name string) FirstValue) error {
	if !p.mastered {
		return nil
	}
	var first FirstValue
	if fill != nil {
		first = fill(p.name)
	}
	before := t.held(t.master.Bytes)
	lo, part, err := t.part(p)
	if err == nil {
		err = t.master.AddShard(p.name, p.n, lo, part, shifted(first, lo))
	}
	t.holders.add(plan.Masters, p.name, t.held(t.master.Bytes)-before)
	return err
}

// matches returns an error if a checkpoint is of another run.
func (t *Trainer[B]) matches(saved *about) error {
	want, err := t.describe()
	if err != nil {
		return err
	}
	switch {
	case saved.Parameters != want.Parameters:
		err = fmt.Errorf("it is of a model with other parameters: their names, lengths or types differ")
	case saved.Masters != want.Masters || saved.StateBits != want.StateBits || saved.InBackward != want.InBackward || saved.Fold != want.Fold:
		err = fmt.Errorf("it has %s master weights, %d-bit state, updates in the backward pass: %t, and folds gradients: %t; the options say %s, %d, %t and %t",
			saved.Masters, saved.StateBits, saved.InBackward, saved.Fold, want.Masters, want.StateBits, want.InBackward, want.Fold)
	default:
		return sameRun(saved.Run, want.Run)
	}
	return fmt.Errorf("%w: %w", err, snug.ErrConfig)
}

// fits returns an error unless the newest checkpoint is of this run and has the right parts.
func (t *Trainer[B]) fits() error {
	if err := t.matches(t.options.Folder.about); err != nil {
		return err
	}
	var names []string
	for _, p := range t.folder.Newest().Parts {
		names = append(names, p.Name)
	}
	if want := t.parts(); !slices.Equal(names, want) {
		return fmt.Errorf("it has the parts %v, want %v: %w", names, want, snug.ErrCorrupt)
	}
	return nil
}

// restore brings the trainer to the state of the newest checkpoint.
func (t *Trainer[B]) restore() error {
	if err := t.fits(); err != nil {
		return err
	}
	found := t.folder.Newest()
	for _, name := range t.parts() { // weights come before the masters that may need them
		if err := found.Read(name, func(r io.Reader) error { return t.read(name, r) }); err != nil {
			return err
		}
	}
	return nil
}

// parts returns the names of the parts, in the order in which they are restored.
func (t *Trainer[B]) parts() (names []string) {
	if slices.ContainsFunc(t.params, t.saves) {
		names = append(names, weightsPart)
	}
	if t.master != nil {
		names = append(names, mastersPart)
	}
	names = append(names, optimizerPart)
	if t.scaler != nil {
		names = append(names, scalerPart)
	}
	if _, has := t.model.(Stateful); has {
		names = append(names, modelPart)
	}
	return names
}

// saves reports whether a checkpoint has the parameter itself.
func (t *Trainer[B]) saves(p param) bool { return !p.mastered || t.options.Masters != amp.FullMaster }

func (t *Trainer[B]) write(name string, w io.Writer) (err error) {
	switch name {
	case weightsPart:
		if t.shards != nil {
			return t.collectPart(sendWeights, w)
		}
		return t.writeWeights(w)
	case mastersPart:
		if t.shards != nil {
			return t.collectPart(sendMasters, w)
		}
		_, err = t.master.WriteTo(w)
	case optimizerPart:
		switch {
		case t.zeroth != nil:
			return write(w, t.zeroth)
		case t.shards != nil:
			return t.collectPart(sendOptimizer, w)
		}
		_, err = t.opt.WriteTo(w)
	case scalerPart:
		return write(w, t.scaler)
	case modelPart:
		return t.model.(Stateful).WriteState(w)
	}
	return err
}

// write writes a small state.
func write(w io.Writer, x encoding.BinaryAppender) error {
	b, err := x.AppendBinary(nil)
	if err == nil {
		_, err = w.Write(b)
	}
	return err
}

func (t *Trainer[B]) read(name string, r io.Reader) error {
	switch name {
	case weightsPart:
		return t.readWeights(r)
	case mastersPart:
		for _, p := range t.params {
			var err error
			if t.options.Masters == amp.FullMaster && p.mastered && t.shards == nil {
				before := t.held(t.master.Bytes)
				err = t.master.Add(p.name, p.n, nil)
				t.holders.add(plan.Masters, p.name, t.held(t.master.Bytes)-before)
			} else {
				err = t.addMaster(p, nil)
			}
			if err != nil {
				return err
			}
		}
		if _, err := t.master.ReadFrom(r); err != nil {
			return err
		}
		for _, p := range t.params {
			if p.mastered && !t.saves(p) {
				err := t.change(p, func(_ int, part snug.View) error { return t.master.Copy(p.name, part) })
				if err != nil {
					return err
				}
			}
		}
		return nil
	case optimizerPart:
		if t.zeroth != nil {
			return read(r, t.zeroth)
		}
		if t.shards != nil {
			return t.opt.ReadShards(r)
		}
		_, err := t.opt.ReadFrom(r)
		return err
	case modelPart:
		return t.model.(Stateful).ReadState(r)
	}
	return read(r, t.scaler)
}

// read reads a small state that write has written.
func read(r io.Reader, x encoding.BinaryUnmarshaler) error {
	b, err := io.ReadAll(io.LimitReader(r, maxSmall))
	if err != nil {
		return err
	}
	return x.UnmarshalBinary(b)
}

// Save writes a checkpoint of the steps done, unless the newest one is of the same step. If ctx ends while Save writes,
// the older checkpoints stay. The error wraps [snug.ErrConfig] if there is neither Options.Dir nor Options.Folder, and
// after a step that stopped half-way, see [Trainer.Train]. It wraps [snug.ErrNonFinite] if a parameter has elements that
// are not finite; Save reads the parameters once to know. Otherwise it comes from the file system, the Storage or ctx;
// the run can go on, and Save can be called again.
//
// With Options.Reducer all ranks call Save at the same step. Rank 0 writes, and the others wait for it.
func (t *Trainer[B]) Save(ctx context.Context) (err error) {
	switch {
	case ctx == nil:
		return fmt.Errorf("train: Save: the context is nil: %w", snug.ErrConfig)
	case t.closed():
		return fmt.Errorf("train: Save: the Trainer is closed: %w", snug.ErrConfig)
	case t.step == t.saved:
		return nil
	case t.options.Reducer != nil:
		return t.saveTogether(ctx)
	}
	return t.save(ctx)
}

func (t *Trainer[B]) save(ctx context.Context) (err error) {
	switch {
	case t.folder == nil:
		return fmt.Errorf("train: Save: there is no Dir, or the Trainer is closed: %w", snug.ErrConfig)
	case t.halfway:
		return fmt.Errorf("train: Save: %w", t.stopped())
	}
	if t.averaged { // a checkpoint has the parameters that train
		if err := t.trainable(); err != nil {
			return fmt.Errorf("train: Save: %w", err)
		}
		defer func() { err = errors.Join(err, t.Average()) }()
	}
	if err := t.finite(); err != nil {
		return fmt.Errorf("train: Save: step %d: %w", t.step, err)
	}
	a, err := t.describe()
	if err != nil {
		return fmt.Errorf("train: Save: %w", err)
	}
	var parts []checkpoint.Part
	for _, name := range t.parts() {
		parts = append(parts, checkpoint.Part{Name: name, Write: func(w io.Writer) error { return t.write(name, untilDone{ctx, w}) }})
	}
	if err := t.folder.Save(t.step, a, parts); err != nil {
		return fmt.Errorf("train: Save: step %d: %w", t.step, err)
	}
	t.saved = t.step
	return nil
}

// finite returns an error if a parameter has elements that are not finite.
func (t *Trainer[B]) finite() error {
	stats, err := amp.Measure(func(yield func(string, snug.View) bool) {
		for _, p := range t.params {
			if !yield(p.name, p.value) {
				return
			}
		}
	})
	if err == nil && stats.NonFinite > 0 {
		first := ""
		if len(stats.Overflows) > 0 {
			first = ", such as " + stats.Overflows[0].String()
		}
		err = fmt.Errorf("parameters are not finite%s: older checkpoints stay: %w", first, snug.ErrNonFinite)
	}
	return err
}

// untilDone writes until its context ends.
type untilDone struct {
	ctx context.Context
	w   io.Writer
}

func (u untilDone) Write(b []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.w.Write(b)
}

// piece is how many elements writeValues and readValues work on at a time.
const piece = 1 << 12

// writeValues writes elements as little-endian numbers of their type.
func writeValues(w io.Writer, v snug.View) error {
	return inPieces(v, func(host snug.View, part snug.View, b []byte) error {
		if err := snug.Copy(host, part); err != nil {
			return err
		}
		switch host.DType() {
		case snug.F32:
			for i, x := range host.Float32s() {
				binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(x))
			}
		case snug.BF16:
			for i, x := range host.BFloat16s() {
				binary.LittleEndian.PutUint16(b[2*i:], uint16(x))
			}
		default:
			for i, x := range host.Float16s() {
				binary.LittleEndian.PutUint16(b[2*i:], x.Bits())
			}
		}
		_, err := w.Write(b)
		return err
	})
}

// readValues reads what writeValues wrote.
func readValues(r io.Reader, v snug.View) error {
	return inPieces(v, func(host snug.View, part snug.View, b []byte) error {
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
		switch host.DType() {
		case snug.F32:
			for i := range host.Float32s() {
				host.Float32s()[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
			}
		case snug.BF16:
			for i := range host.BFloat16s() {
				host.BFloat16s()[i] = snug.BFloat16(binary.LittleEndian.Uint16(b[2*i:]))
			}
		default:
			for i := range host.Float16s() {
				host.Float16s()[i] = float16.Frombits(binary.LittleEndian.Uint16(b[2*i:]))
			}
		}
		return snug.Copy(part, host)
	})
}

// inPieces calls do for each part of v, with host memory for the part, as elements and as bytes.
func inPieces(v snug.View, do func(host, part snug.View, b []byte) error) error {
	n := min(piece, v.Len())
	host, _, err := snug.MakeView(snug.CPU(), v.DType(), n)
	if err != nil {
		return err
	}
	b := make([]byte, n*v.DType().Size())
	for lo := 0; lo < v.Len(); lo += piece {
		part, err := v.Slice(lo, min(lo+piece, v.Len()))
		if err != nil {
			return err
		}
		there, err := host.Slice(0, part.Len())
		if err != nil {
			return err
		}
		if err := do(there, part, b[:part.Bytes()]); err != nil {
			return err
		}
	}
	return nil
}
