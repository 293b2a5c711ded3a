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
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/checkpoint"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/meter"
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

// maxSmall is the maximum size in bytes of the state of a scaler or of an optimizer without gradients.
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
	way := t.gradients.traits()
	return about{run, notes, hex.EncodeToString(sum.Sum(nil)), t.options.masters(), t.options.StateBits, way.changes, way.final, t.begun}, nil
}

// masters returns the name of the form of master weights, with the way in which it rounds.
func (o *Options) masters() string {
	if o.Stochastic {
		return o.Masters.String() + " stochastic"
	}
	return o.Masters.String()
}

// savedPart is a part of a checkpoint.
type savedPart struct {
	name  string
	write func(w io.Writer) error
	read  func(r io.Reader) error
}

// small is a part of a state that is no larger than maxSmall.
func small(name string, state interface {
	encoding.BinaryAppender
	encoding.BinaryUnmarshaler
}) savedPart {
	return savedPart{name, func(w io.Writer) error {
		b, err := state.AppendBinary(nil)
		if err == nil {
			_, err = w.Write(b)
		}
		return err
	}, func(r io.Reader) error {
		b, err := io.ReadAll(io.LimitReader(r, maxSmall))
		if err != nil {
			return err
		}
		return state.UnmarshalBinary(b)
	}}
}

// large is a part that an object reads and writes.
func large(name string, state interface {
	io.WriterTo
	io.ReaderFrom
}) savedPart {
	return savedPart{name, func(w io.Writer) error {
		_, err := state.WriteTo(w)
		return err
	}, func(r io.Reader) error {
		_, err := state.ReadFrom(r)
		return err
	}}
}

// parts are the parts in the order in which they are restored: weights come before the masters that may need them.
func (t *Trainer[B]) parts() []savedPart {
	list := slices.Concat(t.gradients.parts(), t.scale.parts(), t.buffers.parts())
	if m, has := t.model.(Stateful); has {
		list = append(list, savedPart{modelPart, m.WriteState, m.ReadState})
	}
	return list
}

// parts are the parameters, the master weights and the optimizer's state.
func (u *updater[B]) parts() (list []savedPart) {
	t := u.t
	if slices.ContainsFunc(t.params, t.saves) {
		list = append(list, savedPart{weightsPart, t.writeWeights, t.readWeights})
	}
	if slices.ContainsFunc(t.params, func(p param) bool { return p.mastered }) {
		masters := large(mastersPart, u.master)
		masters.read = u.readMasters
		list = append(list, masters)
	}
	return append(list, large(optimizerPart, u.opt))
}

// addMasters gives master weights their first values. Where they are restored next, whole ones need none.
func (u *updater[B]) addMasters(fill func(name string) FirstValue, restored bool) error {
	for _, p := range u.t.params {
		if !p.mastered {
			continue
		}
		var first FirstValue
		if fill != nil {
			first = fill(p.name)
		}
		before := u.t.held(u.master.Bytes)
		lo, part, err := p.part()
		switch {
		case err != nil:
		case restored && part.Len() == p.n && !u.t.saves(p):
			err = u.master.Add(p.name, p.n, nil)
		default:
			err = u.master.AddShard(p.name, p.n, lo, part, shifted(first, lo))
		}
		u.t.holders.add(meter.Masters, p.name, u.t.held(u.master.Bytes)-before)
		if err != nil {
			return err
		}
	}
	return nil
}

func (u *updater[B]) readMasters(r io.Reader) error {
	if err := u.addMasters(nil, true); err != nil {
		return err
	}
	if _, err := u.master.ReadFrom(r); err != nil {
		return err
	}
	for _, p := range u.t.params {
		if p.mastered && !u.t.saves(p) {
			err := p.change(func(_ int, part snug.View) error { return u.master.Copy(p.name, part) })
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// open opens the folder of checkpoints.
func (t *Trainer[B]) open() (err error) {
	o := &t.options
	if t.checkpoints = o.Folder; o.Dir != "" && !o.follows() {
		if t.checkpoints, err = OpenFolder(o.Dir, o.Keep); err != nil {
			return errors.Unwrap(err) // without the name of the function
		}
		t.closes(t.checkpoints.Close)
	}
	if _, t.received, _ = t.checkpoints.Newest(); t.received != nil {
		t.notes = t.received
	}
	return nil
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
	if err := t.matches(t.checkpoints.about); err != nil {
		return err
	}
	var names, want []string
	for _, p := range t.checkpoints.folder.Newest().Parts {
		names = append(names, p.Name)
	}
	for _, p := range t.parts() {
		want = append(want, p.name)
	}
	if !slices.Equal(names, want) {
		return fmt.Errorf("it has the parts %v, want %v: %w", names, want, snug.ErrCorrupt)
	}
	return nil
}

// saves reports whether a checkpoint has the parameter itself.
func (t *Trainer[B]) saves(p param) bool { return !p.mastered || t.options.Masters != amp.FullMaster }

// Save writes a checkpoint of the steps done, unless the newest one is of the same step. If ctx ends while Save writes,
// the older checkpoints stay. The error wraps [snug.ErrConfig] if there is neither Options.Dir nor Options.Folder, and
// after a step that stopped half-way, see [Trainer.Train]. It wraps [snug.ErrNonFinite] if a parameter has elements that
// are not finite; Save reads the parameters once to know. Otherwise it comes from the file system, the Storage or ctx;
// the run can go on, and Save can be called again.
//
// With Options.Reducer all ranks call Save at the same step. Rank 0 writes, and the others wait for it.
func (t *Trainer[B]) Save(ctx context.Context) (err error) {
	defer fault.Named(&err, "train: Save")
	switch {
	case ctx == nil:
		return fmt.Errorf("the context is nil: %w", snug.ErrConfig)
	case t.closed():
		return fmt.Errorf("the Trainer is closed: %w", snug.ErrConfig)
	case t.step == t.saved:
		return nil
	}
	err = t.ranks.agree(t.gradients.together(func() error { return t.save(ctx) }))
	if err == nil {
		t.saved = t.step
	} else if t.options.follows() {
		return fmt.Errorf("step %d: %w", t.step, err)
	}
	return err
}

func (t *Trainer[B]) save(ctx context.Context) (err error) {
	switch {
	case t.checkpoints == nil:
		return fmt.Errorf("there is no Dir: %w", snug.ErrConfig)
	case t.halfway:
		return t.stopped()
	}
	if t.averaged { // a checkpoint has the parameters that train
		if err := t.gradients.average(false); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, t.Average()) }()
	}
	if err := t.finite(); err != nil {
		return fmt.Errorf("step %d: %w", t.step, err)
	}
	a, err := t.describe()
	if err != nil {
		return err
	}
	var parts []checkpoint.Part
	for _, p := range t.parts() {
		parts = append(parts, checkpoint.Part{Name: p.name, Write: func(w io.Writer) error { return p.write(untilDone{ctx, w}) }})
	}
	if err := t.checkpoints.folder.Save(t.step, a, parts); err != nil {
		return fmt.Errorf("step %d: %w", t.step, err)
	}
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

// piece is how many elements pass through memory at a time.
const piece = 1 << 16

// writeValues writes elements as little-endian numbers of their type.
func writeValues(w io.Writer, v snug.View) error {
	return inPieces(v, func(host, part snug.View, b []byte) error {
		if err := snug.Copy(host, part); err != nil {
			return err
		}
		littleEndian(b, v.DType().Size())
		_, err := w.Write(b)
		return err
	})
}

// readValues reads what writeValues wrote.
func readValues(r io.Reader, v snug.View) error {
	return inPieces(v, func(host, part snug.View, b []byte) error {
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
		littleEndian(b, v.DType().Size())
		return snug.Copy(part, host)
	})
}

// littleEndian converts numbers of size bytes between the order of this processor's bytes and little-endian.
func littleEndian(b []byte, size int) {
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		for ; len(b) > 0; b = b[size:] {
			slices.Reverse(b[:size])
		}
	}
}

// inPieces calls do for each part of v, with host memory for the part, and the bytes of that memory.
func inPieces(v snug.View, do func(host, part snug.View, b []byte) error) error {
	all, _, err := snug.MakeView(snug.CPU(), v.DType(), min(piece, v.Len()))
	if err != nil {
		return err
	}
	for lo := 0; lo < v.Len(); lo += piece {
		part, err := v.Slice(lo, min(lo+piece, v.Len()))
		if err != nil {
			return err
		}
		host, err := all.Slice(0, part.Len())
		if err != nil {
			return err
		}
		if err := do(host, part, device.Mem(&host).Bytes()); err != nil {
			return err
		}
	}
	return nil
}
