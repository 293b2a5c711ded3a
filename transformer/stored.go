package transformer

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/strictjson"
	"github.com/snug-ml/snug/qlora"
)

// This file has folders whose matrices are quantized: what config.json says of them, and which they are. What a way of quantizing writes
// there has a file of its own, such as stored_fp8.go.

// storedMethod is a quant_method of config.json.
type storedMethod struct {
	name string
	// read reads the member quantization_config. It returns errNotStored for a form that is not read, and otherwise an error about the
	// member. Members about activations are of no account: products here take activations as they are.
	read func(raw json.RawMessage, c *Config) (storedAs, error)
}

// storedAs says how a folder has the matrices of the layers.
type storedAs struct {
	form   qlora.Type
	groups qlora.Groups // of Grouped
	bits   float64      // of an element with its scales, 0 for what package qlora makes
	block  []int        // rows and columns that share a scale, nil for what the shape of the scales says
	// floats reports whether config.json says that a matrix is in floats. modules are the names of its module, in every layout of
	// the family. nil says it of none.
	floats func(c *Config, modules []string) bool
}

// errNotStored is the error of a form that is not read.
var errNotStored = errors.New("a form that is not read")

var storedMethods = map[string]storedMethod{}

func registerStored(m storedMethod) { storedMethods[m.name] = m }

// maxUnconverted is the longest list of modules that were not converted that is read.
const maxUnconverted = 4096

// readStored reads quantization_config.
func (c *Config) readStored(f *fields) error {
	const name = "quantization_config"
	if !f.has(name) {
		f.only(name)
		return nil
	}
	f.taken[name] = true
	raw := f.raw[name]
	var said struct {
		Method string `json:"quant_method"`
	}
	_ = json.Unmarshal(raw, &said) // a method that cannot be read is none
	method, known := storedMethods[said.Method]
	if known && c.names().conv {
		return bad(f.path+name, "matrices of %s that are stored quantized are not supported", c.Family)
	}
	err := errNotStored
	if known {
		f.stored, err = method.read(raw, c)
	}
	switch {
	case errors.Is(err, errNotStored):
		return bad(f.path+name, "the weights are stored quantized (%s); take the folder of the unquantized model, which is quantized while it is loaded. "+
			"Quantized matrices are read of %s", quantizedBy(said.Method, err), strings.Join(slices.Sorted(maps.Keys(storedMethods)), ", "))
	case err != nil:
		return bad(f.path+name, "%s", plain(err))
	}
	c.Stored, c.StoredBits = f.stored.form, f.stored.bits
	c.StoredGroups = f.stored.groups
	if b := f.stored.block; b != nil {
		c.StoredBlock = [2]int(b)
	}
	return nil
}

// readMember reads quantization_config or an object in it, with an error for members that it does not know. null is as if it were not there.
func readMember(raw json.RawMessage, to any) error {
	var members map[string]json.RawMessage
	if err := strictjson.Unmarshal(raw, &members); err != nil {
		return err
	}
	maps.DeleteFunc(members, func(_ string, value json.RawMessage) bool { return isNull(value) })
	text, err := json.Marshal(members)
	if err != nil {
		return err
	}
	return strictjson.Unmarshal(text, to)
}

// notStored is errNotStored with what is not read.
func notStored(format string, args ...any) error {
	return fmt.Errorf("%s%w", fmt.Sprintf(format, args...), errNotStored)
}

func quantizedBy(method string, err error) string {
	if method == "" {
		return "by a method that it does not name"
	}
	what := strings.TrimSuffix(err.Error(), errNotStored.Error())
	if what != "" {
		what = ", " + what
	}
	return fmt.Sprintf("quant_method %.40q%s", method, what)
}

// checkBlock returns an error unless a list is the rows and columns of a block.
func checkBlock(name string, block []int) error {
	if len(block) != 2 || slices.Min(block) < 1 || slices.Max(block) > maxCount {
		return fmt.Errorf("%s is %v, want rows and columns", name, block)
	}
	return nil
}

// floatsOf returns the matrices of the layers that config.json says to be in floats.
func (c *Config) floatsOf(s storedAs) (floats []string) {
	if c.Stored == 0 || s.floats == nil {
		return nil
	}
	layouts := []layout{c.layout()}
	for _, l := range c.layouts() {
		if l != layouts[0] {
			layouts = append(layouts, l)
		}
	}
	lists := make([][]amp.Tensor, len(layouts))
	for i, l := range layouts {
		lists[i] = c.tensors(l)
	}
	for i, t := range lists[0] {
		if !strings.HasSuffix(t.Name, ".weight") || !c.isMatrix(t) {
			continue
		}
		modules := make([]string, len(lists))
		for j := range lists {
			modules[j] = strings.TrimSuffix(lists[j][i].Name, ".weight")
		}
		if s.floats(c, modules) {
			floats = append(floats, t.Name)
		}
	}
	return floats
}

// skipped returns storedAs.floats for lists of modules that were not converted, by the rules of transformers'
// should_convert_module: an entry is a regular expression for the beginning of a module's name, up to a dot or its end, or the end of
// the name. A list that cannot be read is none: then the files alone say what is in floats.
func skipped(lists ...json.RawMessage) func(*Config, []string) bool {
	var ends, begins []string
	for _, list := range lists {
		var modules []string
		if json.Unmarshal(list, &modules) != nil || len(modules) > maxUnconverted {
			continue
		}
		ends = append(ends, modules...)
		for _, m := range modules {
			m = `(?:` + strings.TrimSuffix(strings.TrimSuffix(m, "."), `\`) + `)`
			if _, err := regexp.Compile(m); err == nil {
				begins = append(begins, m)
			}
		}
	}
	begin, err := regexp.Compile(`^(?:` + strings.Join(begins, "|") + `)(?:\.|$)`)
	if err != nil || begins == nil {
		begin = nil
	}
	return func(_ *Config, modules []string) bool {
		return slices.ContainsFunc(ends, func(m string) bool { return strings.HasSuffix(modules[0], m) }) || begin != nil && begin.MatchString(modules[0])
	}
}

// FloatsIn returns the matrices of the layers that an opened folder has in floats, for Config.Floats, nil if Config.Stored
// is 0. Errors are those of [Config.Check].
func (c *Config) FloatsIn(w *amp.Weights) (floats []string, err error) {
	defer fault.Named(&err, "transformer: FloatsIn")
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.Stored == 0 {
		return nil, nil
	}
	names, err := c.compare(w)
	if err != nil {
		return nil, err
	}
	for _, t := range c.tensors(c.layout()) {
		if c.isMatrix(t) && !c.isStoredAs(w, names[t.Name], t) {
			floats = append(floats, t.Name)
		}
	}
	return floats, nil
}

// Held returns the Config of a folder as [Open] with these options holds its matrices, for [Config.Plan]: without Stored and Floats if they
// are decoded. It is nil for a nil Config.
func (c *Config) Held(o Options) *Config {
	if c == nil {
		return nil
	}
	held := *c
	if !o.keeps(c.Stored) {
		held.setFloats()
	}
	return &held
}

// setFloats makes c the Config of a folder in floats.
func (c *Config) setFloats() {
	c.Stored, c.Floats, c.StoredBits, c.StoredBlock, c.StoredGroups = 0, nil, 0, [2]int{}, qlora.Groups{}
}

// keeps reports whether matrices that a folder has in a form stay in it.
func (o *Options) keeps(form qlora.Type) bool {
	return form != 0 && !o.Decode && (o.Base == 0 || o.Base == form)
}

// storedForm is how files have a matrix in a form of package qlora.
type storedForm struct {
	// find reports whether a folder has a matrix, called want, in this form, and if so whether its codes have another size than
	// the matrix, in words.
	find func(w *amp.Weights, want amp.Tensor) (found bool, wrong string)
	// beside are the tensors of such a matrix by their ends, in place of "weight".
	beside []string
	// whole says that a matrix is read as a whole before it is decoded, which takes its codes, and not some rows at a time.
	whole bool
	// host says that such weights are on the CPU alone.
	host bool
	// zeroBias says that a matrix may have a bias of zeros beside it that the family does not have.
	zeroBias bool
}

// storedForms are the forms. Experts that share a tensor have a description of their own, see blocksOf.
var storedForms = map[qlora.Type]storedForm{
	qlora.FP8:     {find: typed("F8_E4M3"), beside: []string{"weight_scale_inv", "weight_scale"}},
	qlora.FP8E5M2: {find: typed("F8_E5M2"), beside: []string{"weight_scale_inv", "weight_scale"}},
	qlora.INT8:    {find: typed("I8"), beside: []string{"SCB", "weight_format"}},
	qlora.NF4:     nibbles(qlora.NF4),
	qlora.FP4:     nibbles(qlora.FP4),
	qlora.Grouped: grouped(),
}

// typed returns storedForm.find for codes that are elements of a type in the shape of the matrix.
func typed(dt string) func(*amp.Weights, amp.Tensor) (bool, string) {
	return func(w *amp.Weights, want amp.Tensor) (bool, string) {
		have, _ := w.Tensor(want.Name)
		if have.DType != dt || slices.Equal(have.Shape, want.Shape) {
			return have.DType == dt, ""
		}
		return true, fmt.Sprintf("%s is %v, want %v", want.Name, have.Shape, want.Shape)
	}
}

// storedIs reports whether a folder has a parameter in the form of Stored, and if so whether its codes have another size. want has its
// name there and its shape. Embeddings are in floats.
func (c *Config) storedIs(w *amp.Weights, want amp.Tensor) (found bool, wrong string) {
	form, known := storedForms[c.Stored]
	if !known || len(want.Shape) != 2 || strings.HasSuffix("."+want.Name, "."+c.embedding()) || strings.HasSuffix("."+want.Name, "."+c.positions()) {
		return false, ""
	}
	return form.find(w, want)
}

// isStoredAs is storedIs for a parameter that has another name in the folder.
func (c *Config) isStoredAs(w *amp.Weights, name string, want amp.Tensor) bool {
	if _, blocks := w.Tensor(name + blocksEnd); c.Stored == qlora.MXFP4 && blocks && len(want.Shape) == 2 {
		return true
	}
	want.Name = name
	found, _ := c.storedIs(w, want)
	return found
}

// What they have beside any module: scales of activations, and of the keys and values of a cache.
var besideModules = []string{"input_scale", "activation_scale", "output_scale", "q_scale", "k_scale", "v_scale", "kv_scale"}

// describesStored reports whether a tensor belongs to a matrix that is stored quantized, or to activations, which a matrix of floats may
// have too. known are the parameters in the folder, true those that are stored quantized.
func (c *Config) describesStored(name string, known map[string]bool) bool {
	if c.Stored == 0 {
		return false
	}
	form := storedForms[c.Stored]
	if module, is := strings.CutSuffix(name, ".bias"); is && form.zeroBias && known[module+".weight"] {
		return true // whose elements compare has looked at
	}
	for _, end := range form.beside {
		if module, is := strings.CutSuffix(name, "."+end); is {
			return known[module+".weight"]
		}
	}
	at := strings.LastIndexByte(name, '.') + 1
	module, end := name[:at], name[at:]
	if module == "" || !slices.Contains(besideModules, end) {
		return false
	}
	for parameter := range known {
		if strings.HasPrefix(parameter, module) {
			return true
		}
	}
	return false
}

// storedIn returns the names of the matrices that a folder has quantized, and sets c.joined. It compares the folder's weights with the config,
// before there is memory for parameters of its shapes.
func (c *Config) storedIn(dir string) (_ map[string]bool, err error) {
	w, err := amp.OpenWeights(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	c.joined = c.isJoined(w)
	names, err := c.compare(w)
	if err != nil || c.Stored == 0 {
		return nil, err
	}
	stored, own, published := map[string]bool{}, *c, c.tensors(c.layout())
	own.Whole = ""
	for i, t := range own.tensors(own.layout()) {
		if c.isStoredAs(w, names[published[i].Name], t) {
			stored[t.Name] = true
		}
	}
	return stored, nil
}

// decodePiece is the number of elements that are decoded at a time. Tests lower it.
var decodePiece = 1 << 20

// decodeOnHost is decode for a matrix in a form of the CPU, into a vector of another device.
func (s *hubFolder) decodeOnHost(q *quantizer, p *Param, v snug.View) (err error) {
	host, free, err := snug.MakeView(snug.CPU(), v.DType(), v.Len())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, free()) }()
	w, err := s.quantized(q, p, snug.CPU())
	if err != nil {
		return err
	}
	if err := errors.Join(w.Dequantize(host), w.Close()); err != nil {
		return err
	}
	return snug.Copy(v, host)
}

// decode reads a matrix that the folder has quantized into v, in the model's type, some rows at a time.
func (s *hubFolder) decode(q *quantizer, p *Param, v snug.View) error {
	name := s.names[p.Name]
	form := storedForms[q.coded.form]
	if form.host && !q.dev.IsCPU() {
		return s.decodeOnHost(q, p, v)
	}
	if _, joined := q.config.slot(p.Name); joined || form.whole {
		w, err := s.quantized(q, p, q.dev)
		if err != nil {
			return err
		}
		return errors.Join(w.Dequantize(v), w.Close())
	}
	rows, cols := p.Shape[0], p.Shape[1]
	const block = 128 // rows that share scales, mostly
	step := max(1, decodePiece/max(1, cols)/block) * block
	for lo := 0; lo < rows; lo += step {
		n := min(step, rows-lo)
		w, err := s.stored.LoadRows(name, qlora.Rows{First: lo, Step: 1, Count: n}, q.dev)
		if err != nil {
			return err
		}
		if err := errors.Join(w.Dequantize(part(v, lo*cols, n*cols)), w.Close()); err != nil {
			return err
		}
	}
	return nil
}
