package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
)

// checkpoints is a folder that holds the state of a run after some step:
//
//	step-00000025/run.json    what the state belongs to, and the sums of the files
//	step-00000025/weights     master weights, or the float32 weights themselves
//	step-00000025/optimizer
//	step-00000025/scaler      with mixed precision
//
// A checkpoint is written under another name and renamed when it is whole and
// on disk, so a run that is killed at any moment leaves the one before.
type checkpoints struct {
	dir    string     // empty: off
	latest string     // folder of the newest checkpoint, empty if there is none
	header *runHeader // of the newest checkpoint
}

// runHeader says what a checkpoint belongs to.
type runHeader struct {
	Version    int                `json:"version"`
	Preset     string             `json:"preset"`
	Steps      int                `json:"steps"`
	Seed       uint64             `json:"seed"`
	DType      string             `json:"dtype"`
	Techniques []string           `json:"techniques"`
	Text       uint32             `json:"text"`                  // sum of the tokens trained on
	MicroBatch int                `json:"micro_batch,omitempty"` // that was found with -memory
	Step       int                `json:"step"`
	LossFirst  float64            `json:"loss_first"`
	Files      map[string]fileSum `json:"files,omitempty"`
}

type fileSum struct {
	Size int64  `json:"size"`
	CRC  uint32 `json:"crc32c"`
}

const checkpointVersion = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// openCheckpoints checks a folder, which is made if it is not there, and the
// newest checkpoint in it. An empty name stands for no checkpoints.
func openCheckpoints(dir string) (*checkpoints, error) {
	c := &checkpoints{dir: dir}
	if dir == "" {
		return c, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	probe, err := os.CreateTemp(dir, "probe-")
	if err != nil {
		return nil, fmt.Errorf("the checkpoint folder is not writable: %w", err)
	}
	if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
		return nil, err
	}
	found, err := filepath.Glob(filepath.Join(dir, "step-*"))
	if err != nil || len(found) == 0 {
		return c, err
	}
	c.latest = slices.Max(found)
	if c.header, err = readHeader(c.latest); err != nil {
		return nil, fmt.Errorf("the checkpoint %s is damaged: %w", c.latest, err)
	}
	return c, nil
}

func (c *checkpoints) on() bool { return c.dir != "" }

// readHeader reads and checks a checkpoint's files.
func readHeader(dir string) (*runHeader, error) {
	text, err := os.ReadFile(filepath.Join(dir, "run.json"))
	if err != nil {
		return nil, err
	}
	h := new(runHeader)
	if err := json.Unmarshal(text, h); err != nil {
		return nil, fmt.Errorf("run.json: %w", err)
	}
	if h.Version != checkpointVersion {
		return nil, fmt.Errorf("run.json: version %d, want %d", h.Version, checkpointVersion)
	}
	for name, want := range h.Files {
		f, err := os.Open(filepath.Join(dir, filepath.Base(name)))
		if err != nil {
			return nil, err
		}
		sum := crc32.New(castagnoli)
		n, err := io.Copy(sum, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		if got := (fileSum{n, sum.Sum32()}); got != want {
			return nil, fmt.Errorf("%s: %d bytes with sum %08x, want %d with %08x", name, got.Size, got.CRC, want.Size, want.CRC)
		}
	}
	return h, nil
}

// headerOf returns the header of a run of c on data, before its first step.
func headerOf(c config, data *corpus) runHeader {
	sum := crc32.New(castagnoli)
	var b [2]byte
	for _, t := range data.train {
		b[0], b[1] = byte(t), byte(t>>8)
		sum.Write(b[:])
	}
	return runHeader{
		Version: checkpointVersion, Preset: c.name, Steps: c.steps, Seed: c.seed,
		DType: c.dtype.String(), Techniques: c.on.names(), Text: sum.Sum32(), MicroBatch: c.fit.Micro,
	}
}

// matches returns an error when the newest checkpoint is of another run.
func (c *checkpoints) matches(conf config, data *corpus) error {
	if c.header == nil {
		return nil
	}
	want, got := headerOf(conf, data), *c.header
	var differ []string
	note := func(what string, got, want any) {
		if fmt.Sprint(got) != fmt.Sprint(want) {
			differ = append(differ, fmt.Sprintf("%s %v, not %v", what, got, want))
		}
	}
	note("preset", got.Preset, want.Preset)
	note("steps", got.Steps, want.Steps)
	note("seed", got.Seed, want.Seed)
	note("type", got.DType, want.DType)
	note("techniques", got.Techniques, want.Techniques)
	note("text", got.Text, want.Text)
	note("micro-batch", got.MicroBatch, want.MicroBatch)
	if differ == nil {
		return nil
	}
	return fmt.Errorf("the checkpoint %s is of another run: %s", c.latest, strings.Join(differ, "; "))
}

// restore brings a trainer without parameters to the state of the newest
// checkpoint.
func (c *checkpoints) restore(t *trainer) error {
	for name := range c.header.Files {
		err := readPart(filepath.Join(c.latest, filepath.Base(name)), func(r io.Reader) error { return t.readPart(name, r) })
		if err != nil {
			return inputError{fmt.Errorf("the checkpoint %s is damaged: %s: %w", c.latest, name, err)}
		}
	}
	t.step, t.first = c.header.Step, c.header.LossFirst
	return nil
}

func readPart(file string, read func(io.Reader) error) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	return errors.Join(read(bufio.NewReader(f)), f.Close())
}

// save writes a checkpoint and removes older ones.
func (c *checkpoints) save(t *trainer) error {
	tmp, err := os.MkdirTemp(c.dir, "unfinished-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp) // nothing once it is renamed
	h := headerOf(t.config, t.data)
	h.Step, h.LossFirst, h.Files = t.step, t.first, map[string]fileSum{}
	for _, name := range t.partNames() {
		h.Files[name], err = writeFile(filepath.Join(tmp, name), func(w io.Writer) error { return t.writePart(name, w) })
		if err != nil {
			return err
		}
	}
	text, err := json.MarshalIndent(h, "", "  ")
	if err != nil {
		return err
	}
	_, err = writeFile(filepath.Join(tmp, "run.json"), func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	})
	if err != nil {
		return err
	}
	name := filepath.Join(c.dir, fmt.Sprintf("step-%08d", t.step))
	if err := os.Rename(tmp, name); err != nil {
		return err
	}
	if err := syncFolder(c.dir); err != nil {
		return err
	}
	c.latest = name
	return c.clean()
}

// clean removes all but the latest checkpoint, and what killed runs left.
func (c *checkpoints) clean() error {
	for _, pattern := range []string{"step-*", "unfinished-*"} {
		found, err := filepath.Glob(filepath.Join(c.dir, pattern))
		if err != nil {
			return err
		}
		for _, name := range found {
			if name == c.latest {
				continue
			}
			if err := os.RemoveAll(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeFile writes a file through to the disk and returns its sum.
func writeFile(name string, write func(io.Writer) error) (fileSum, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fileSum{}, err
	}
	sum := crc32.New(castagnoli)
	w := bufio.NewWriterSize(f, 1<<16)
	err = write(io.MultiWriter(w, sum))
	err = errors.Join(err, w.Flush(), f.Sync())
	info, statErr := f.Stat()
	if err := errors.Join(err, statErr, f.Close()); err != nil {
		return fileSum{}, err
	}
	return fileSum{info.Size(), sum.Sum32()}, nil
}

// syncFolder makes a rename in a folder durable, where the system can.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = f.Sync()
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrInvalid) {
		err = nil // not every system can sync a folder
	}
	return errors.Join(err, f.Close())
}

func (t *trainer) partNames() []string {
	if t.master == nil {
		return []string{"weights", "optimizer"}
	}
	return []string{"weights", "optimizer", "scaler"}
}

func (t *trainer) writePart(name string, w io.Writer) error {
	var err error
	switch {
	case name == "optimizer":
		_, err = t.opt.WriteTo(w)
	case name == "scaler":
		var b []byte
		if b, err = t.scaler.AppendBinary(nil); err == nil {
			_, err = w.Write(b)
		}
	case t.master != nil:
		_, err = t.master.WriteTo(w)
	default:
		for _, p := range t.params {
			x := make([]float32, p.len())
			if err = snug.Copy(x, p.value); err != nil {
				break
			}
			if err = writeFloats(w, x); err != nil {
				break
			}
		}
	}
	return err
}

func (t *trainer) readPart(name string, r io.Reader) error {
	switch {
	case name == "optimizer":
		_, err := t.opt.ReadFrom(r)
		return err
	case name == "scaler" && t.scaler != nil:
		b, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		return t.scaler.UnmarshalBinary(b)
	case name == "weights" && t.master != nil:
		if _, err := t.master.ReadFrom(r); err != nil {
			return err
		}
		for _, p := range t.params {
			if err := t.master.Copy(p.name, p.value); err != nil {
				return err
			}
		}
		return nil
	case name == "weights":
		for _, p := range t.params {
			x := make([]float32, p.len())
			if err := readFloats(r, x); err != nil {
				return err
			}
			if err := snug.Copy(p.value, x); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("an unknown part: %w", snug.ErrCorrupt)
}
