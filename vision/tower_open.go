package vision

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/layers"
)

const (
	configName = "config.json"
	pixelsName = "preprocessor_config.json"
)

// OpenTower opens a folder that transformers wrote: config.json and the weights in safetensors, of a model for classification, of a tower,
// or of a model of images and text, of which it reads the tower. Weights are converted to the type of the options.
//
// A folder of a model for classification has a head, unless Options.Labels makes another. The loss of that head is the cross-entropy of one
// class; other values of problem_type are refused. Tensors of the tower that are not used here, such as a pooler, are kept on the host
// for [Tower.Save]; those of other parts are not read.
//
// The error wraps [snug.ErrConfig] for a model that is not known, [snug.ErrShape] or [snug.ErrCorrupt] for weights that do not fit
// config.json, or is that of the file system.
func OpenTower(dir string, o TowerOptions) (t *Tower, err error) {
	defer fault.Named(&err, "vision: OpenTower")
	r, err := readTower(dir, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.from.Close()) }()
	prefix := r.from.prefix
	if len(r.config.Labels) > 0 {
		prefix = r.family.prefix
	}
	if t, err = newTower(r.config, o, prefix, true, r.from); err != nil {
		return nil, err
	}
	t.text, t.alone = r.text, r.alone
	if err = t.load(r.from); err == nil {
		t.pixels, err = files.ReadInput(filepath.Join(dir, pixelsName), files.Description)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// ReadTower returns the Config of what [OpenTower] opens with the same options. It reads config.json and the headers of the weights. Errors are those
// of OpenTower.
func ReadTower(dir string, o TowerOptions) (c TowerConfig, err error) {
	defer fault.Named(&err, "vision: ReadTower")
	r, err := readTower(dir, o)
	if err != nil {
		return c, err
	}
	if err = r.from.Close(); err == nil {
		_, err = r.config.check()
	}
	return r.config, err
}

// IsTower reports whether a folder has a config.json of a model_type that has a model for classification, whatever else is in it.
func IsTower(dir string) bool {
	text, err := readConfig(dir)
	if err != nil {
		return false
	}
	var top struct {
		ModelType string `json:"model_type"`
	}
	if lenientJSON.Unmarshal(text, &top) != nil {
		return false
	}
	f, _ := byType(top.ModelType)
	return f != nil && f.classifier != ""
}

// towerFolder is what a folder of a tower has, whose values are not read yet.
type towerFolder struct {
	config TowerConfig
	family *towerFamily
	alone  bool
	text   []byte // config.json
	from   *origin
}

// readTower reads what a folder has. The caller closes its weights.
func readTower(dir string, o TowerOptions) (r towerFolder, err error) {
	if r.text, err = readConfig(dir); err != nil {
		return r, err
	}
	if r.config, r.alone, err = parseConfig(r.text); err != nil {
		return r, fmt.Errorf("%s: %w", configName, err)
	}
	w, err := amp.OpenWeights(dir)
	if err != nil {
		return r, err
	}
	r.family, _ = byType(r.config.Family)
	r.from = &origin{w, r.family.place(w, r.family.places()), o.Labels != nil}
	if err = r.complete(dir, o); err != nil {
		err = errors.Join(err, w.Close())
	}
	return r, err
}

// complete adds to the Config what the options say, and the weights.
func (r *towerFolder) complete(dir string, o TowerOptions) (err error) {
	c, side := &r.config, o.Image
	if r.family.resizes && side == 0 {
		if side, err = crop(dir); err != nil {
			return fmt.Errorf("the size of images, which Options.Image would give: %w", err)
		}
	}
	c.see(side)
	if head, has := r.from.Tensor("classifier.weight"); r.from.fresh {
		c.Labels = o.Labels
	} else if !has {
		c.Labels = nil
	} else if c.Labels, err = headLabels(r.text, c.Labels, head.Shape); err != nil {
		return fmt.Errorf("%s: %w", configName, err)
	}
	return r.from.deep(c.Layers)
}

// readConfig reads the config.json of a folder.
func readConfig(dir string) ([]byte, error) {
	if dir == "" {
		return nil, fmt.Errorf("the folder has no name: %w", snug.ErrConfig)
	}
	return files.ReadInput(filepath.Join(dir, configName), files.Description)
}

// place is how the tensors of a file are called.
type place struct {
	prefix   string
	spelling *names
}

// places lists how the tensors of a folder of the family may be called.
func (f *towerFamily) places() (list []place) {
	for i := range f.spellings {
		list = append(list, place{f.prefix, &f.spellings[i]}, place{"", &f.spellings[i]})
	}
	return list
}

// place finds the tower among the tensors of a folder: the first of the places where it is, or else the first, whose tensors are then
// missing.
func (f *towerFamily) place(w *amp.Weights, list []place) place {
	for _, p := range list {
		if _, has := w.Tensor(p.prefix + p.spelling.of(0) + p.spelling.q + ".weight"); has {
			return p
		}
	}
	return list[0]
}

// written returns the name that a parameter has in a file, from the one that it has here.
func (t *Tower) written(name string, in place) string {
	n := &t.family.spellings[0]
	if n == in.spelling {
		return name
	}
	other := in.spelling.inBlock()
	for i := range t.config.Layers {
		rest, is := strings.CutPrefix(name, n.of(i))
		for j, part := range n.inBlock() {
			if end, found := strings.CutPrefix(rest, part); is && part != "" && found && (end == "" || end[0] == '.') {
				return in.spelling.of(i) + other[j] + end
			}
		}
	}
	return name
}

// origin is where the parameters of a tower come from.
type origin struct {
	*amp.Weights
	place
	fresh bool // the head is new
}

// deep returns an error unless the tensors have the last of so many blocks, before these are made.
func (f *origin) deep(blocks int) error {
	name := f.prefix + f.spelling.of(blocks-1) + f.spelling.q + ".weight"
	if _, has := f.Tensor(name); !has {
		return fmt.Errorf("the file lacks %s, of the last of %d blocks by num_hidden_layers in %s: %w", name, blocks, configName, snug.ErrConfig)
	}
	return nil
}

// slot returns where a parameter of a tower is there: in no tensor if it is of a new head.
func (f *origin) slot(t *Tower, p *layers.Param) slot {
	if t.loss == nil || p != t.loss.Head && p != t.loss.Bias {
		return f.spelling.slot(f.prefix+t.written(strings.TrimPrefix(p.Name, t.own), f.place), p)
	}
	if f.fresh {
		return slot{}
	}
	return slot{tensor: p.Name, shape: p.Shape}
}

// check returns an error if a parameter has another shape there.
func (f *origin) check(t *Tower, p *layers.Param) error {
	at := f.slot(t, p)
	if at.tensor == "" {
		return nil
	}
	return checkTensor(f.Weights, at.tensor, at.shape)
}

// load reads the weights of a folder.
func (t *Tower) load(from *origin) error {
	used := map[string]bool{}
	if err := t.loadParams(from, used); err != nil {
		return err
	}
	for _, info := range from.Tensors() {
		if used[info.Name] || !strings.HasPrefix(info.Name, from.prefix) || info.ElementType() == 0 || from.prefix == "" && !t.alone {
			continue
		}
		if only := t.family.towerOnly; only != "" && t.loss != nil && strings.HasPrefix(info.Name, from.prefix+only) {
			continue
		}
		v, _, err := snug.MakeView(snug.CPU(), info.ElementType(), info.Len())
		if err == nil {
			err = from.Load(info.Name, v)
		}
		if err != nil {
			return err
		}
		info.Name = t.own + strings.TrimPrefix(info.Name, from.prefix)
		t.kept = append(t.kept, kept{info, v})
	}
	return nil
}

// loadParams reads the parameters, and sets used for the tensors that they are of.
func (t *Tower) loadParams(from *origin, used map[string]bool) error {
	err := from.LoadAll(func(yield func(string, snug.View) bool) {
		for _, p := range t.Model.Params() {
			if at := from.slot(t, p); at.tensor != "" && at.whole(p) {
				if used[at.tensor] = true; !yield(at.tensor, p.Value) {
					return
				}
			}
		}
	})
	for _, p := range t.Model.Params() {
		if at := from.slot(t, p); err == nil && at.tensor != "" && !at.whole(p) {
			used[at.tensor] = true
			err = from.LoadAt(at.tensor, at.lo, p.Value)
		}
	}
	return err
}

// checkTensor returns an error if a tensor is missing, is quantized, or has another shape.
func checkTensor(w *amp.Weights, name string, shape []int) error {
	info, has := w.Tensor(name)
	switch dt := info.ElementType(); {
	case !has:
		return fmt.Errorf("the file lacks %s: %w", name, snug.ErrConfig)
	case dt != snug.F32 && dt != snug.F16 && dt != snug.BF16:
		return fmt.Errorf("%s has elements of the type %s, want F32, F16 or BF16: a tower or a projector is not read in quantized form: %w", name, info.DType, snug.ErrConfig)
	case !slices.Equal(info.Shape, shape):
		return fmt.Errorf("%s has the shape %v, want %v by %s: %w", name, info.Shape, shape, configName, snug.ErrShape)
	}
	return nil
}
