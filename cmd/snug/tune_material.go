package main

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/dataset"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/transformer"
)

// defaultContext is the maximum number of tokens of a sample without -context.
const defaultContext = 1024

// defaultHeldOut is how many samples are held out at most without -held-out: more cost time and say little more.
const defaultHeldOut = 512

// material is what a run reads: a model's description, its tokenizer, and data.
type material struct {
	config        *transformer.Config // as Open holds the matrices
	decoded       qlora.Type          // the form of the folder's matrices, if they are decoded
	tok           *tokenizer.Tokenizer
	data          *dataset.Set
	dataOptions   dataset.Options
	sum           [sha256.Size]byte // of data
	context       int               // number of tokens of the longest sample
	beside        [][]int           // shapes of the parameters that train beside adapters
	refs          [][pairLength]float32
	teacherConfig *transformer.Config // nil without -teacher
	modelSums     checksums
	teacherSums   checksums // empty without -teacher
	imageErr      error     // why images are not read of a model that sees them, nil if they are
}

// checksums tell a model from others, wherever its folder is.
type checksums struct{ config, weights, processor string }

func checksumsOf(dir string) (c checksums, err error) {
	if c.config, c.weights, err = transformer.Checksum(dir); err != nil {
		return c, err
	}
	c.processor, err = processorChecksum(dir)
	return c, err
}

// gather reads and checks the material of a run, before there is a model.
func (f *tuneFlags) gather() (*material, error) {
	m := &material{}
	var err error
	if m.config, err = transformer.ReadConfig(f.dir); err != nil {
		return nil, err
	}
	if err := f.checkTarget(m.config); err != nil {
		return nil, err
	}
	if f.show == 0 {
		if err := checkWeights(m.config, f.dir); err != nil {
			return nil, fmt.Errorf("%s: %w", f.dir, err)
		}
		if m.modelSums, err = checksumsOf(f.dir); err != nil {
			return nil, err
		}
	}
	form := m.config.Stored
	if m.config = m.config.Held(f.forms()); m.config.Stored == 0 {
		m.decoded = form
	}
	if m.beside, err = f.checkAdapters(m.config); err != nil {
		return nil, err
	}
	if m.tok, err = tokenizer.Open(f.dir); err != nil {
		return nil, err
	}
	m.tok = m.tok.Limit(m.config.Vocab)
	end := endToken(m.config, m.tok)
	o := dataset.Options{Context: cmp.Or(f.most, min(defaultContext, m.config.Context)), EOS: &end, Seed: f.seed, HeldOut: f.held, Pairs: f.beta > 0, Format: f.format}
	if !f.given("held-out") {
		o.HeldOutMost = defaultHeldOut
	}
	if o.Map, err = f.fieldMap(); err != nil {
		return nil, usagef("tune: -map: %w", err)
	}
	if int(end) >= m.config.Vocab {
		name, _ := m.tok.Token(end)
		return nil, fmt.Errorf("%s: the token %.40q, which ends a text, has the id %d, and the model's embedding has %d rows: %w", f.dir, name, end, m.config.Vocab, snug.ErrConfig)
	}
	if m.config.LearnedPositions && o.Context > m.config.Context {
		return nil, usagef("tune: -context %d: the model has %d positions", o.Context, m.config.Context)
	}
	m.dataOptions = o
	if err := m.openInput(f); err != nil {
		return nil, err
	}
	if err = m.openData(f, time.Now().Truncate(time.Minute)); err != nil {
		return nil, err
	}
	if f.show == 0 {
		if err := m.readTeacher(f); err != nil {
			return nil, errors.Join(err, m.data.Close())
		}
	}
	return m, nil
}

// openData reads the data, with a time for chat templates that ask for it.
func (m *material) openData(f *tuneFlags, now time.Time) (err error) {
	if hasTemplate(m.tok) || f.template != "" {
		if m.dataOptions.Template, err = f.openTemplate(m.config, m.tok, now); err != nil {
			return fmt.Errorf("%s: %w", f.dir, err)
		}
	}
	if f.memory > 0 {
		p, heap := plan.ThisProcess(), heapBytes()
		m.dataOptions.Memory = max(f.memory-p.Base-spareBytes, 1)
		defer debug.SetMemoryLimit(debug.SetMemoryLimit(f.memory - (p.Base - heap) - codeBytes))
	}
	m.dataOptions.Progress = f.reading
	data, err := dataset.Open(strings.Split(f.files, ","), m.tok, m.dataOptions)
	if err != nil {
		return err
	}
	sum, err := data.Sum()
	if err != nil {
		return errors.Join(err, data.Close())
	}
	m.data, m.sum, m.context, m.refs = data, sum, data.Longest(), make([][pairLength]float32, data.Pairs())
	return nil
}

// openTemplate opens the chat template of a folder, which knows all tokens that end a turn.
func (f *tuneFlags) openTemplate(config *transformer.Config, tok *tokenizer.Tokenizer, now time.Time) (*chat.Template, error) {
	ids, err := endTokens(f.dir, config, tok)
	if err != nil {
		return nil, err
	}
	o := chat.Options{Now: now, Name: f.template}
	for _, id := range ids {
		if text, known := tok.Token(id); known {
			o.Ends = append(o.Ends, text)
		}
	}
	return chat.Open(tok, o)
}

// chatTime returns the time that the chat template is given, in RFC 3339, and nothing if it does not ask for it.
func (m *material) chatTime() string {
	if t := m.dataOptions.Template; t != nil && t.UsesTime() {
		return t.Now().Format(time.RFC3339)
	}
	return ""
}

// setChatTime reads the data again if the chat template was given another time.
func (t *tuning) setChatTime(text string) error {
	if text == "" || text == t.chatTime() || t.chatTime() == "" {
		return nil
	}
	now, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return fmt.Errorf("the time of the chat template is %.40q: %w", text, snug.ErrCorrupt)
	}
	if err := t.data.Close(); err != nil {
		return err
	}
	return t.openData(&t.tuneFlags, now)
}

// hasTemplate reports whether a folder has a chat template, of whatever name.
func hasTemplate(tok *tokenizer.Tokenizer) bool {
	c := tok.Config()
	return c.ChatTemplate != "" || len(c.Templates) > 0
}

// templateNote says which of a model's chat templates is used, and nothing if there is no choice.
func templateNote(tok *tokenizer.Tokenizer, name string) string {
	named := tok.Config().Templates
	if len(named) == 0 {
		return ""
	}
	used := cmp.Or(name, "default")
	if named["tool_use"] != "" && name == "" {
		used += ", with tools tool_use"
	}
	return fmt.Sprintf("chat template: %s; others have the names %s (-template)", used, strings.Join(slices.Sorted(maps.Keys(named)), ", "))
}

// endToken returns the token that ends a text: the tokenizer's, or else the model's, or -1 for none.
func endToken(c *transformer.Config, tok *tokenizer.Tokenizer) int32 {
	if id, known := tok.ID(tok.Config().EOS); known && tok.Config().EOS != "" {
		return id
	}
	if len(c.EOS) > 0 {
		return int32(c.EOS[0])
	}
	return -1
}

// storedForm returns an error if the folder has quantized matrices that do not go with the flags.
func (m *tuning) storedForm() error {
	stored := m.config.Stored
	switch {
	case stored == 0:
		return nil
	case m.kind().init != "":
		return usagef("tune: -adapter %s begins with a part of the matrices before they are quantized, and %s has them in %s", m.kind().name, m.dir, stored)
	}
	return nil
}

// forms returns the options for matrices that a folder has quantized. They are decoded to train, and to begin adapters with a part of them.
func (f *tuneFlags) forms() (o transformer.Options) {
	if form, err := parseBase(f.form); err == nil {
		o.Base = form
	}
	o.Decode = f.full || f.form == "bf16" || f.form == "" && f.kind().init != ""
	return o
}

// writeDecoded says what becomes of matrices that the folder has quantized, if they do not stay so.
func (m *tuning) writeDecoded(w io.Writer) {
	if m.decoded != 0 {
		fmt.Fprintf(w, "\n%s has matrices in %s: they are decoded while they are read\n", m.dir, m.decoded)
	}
}

// lowForm returns the form of frozen matrices if the plan gives them fewer than 16 bits: the folder's, that of -base, or
// NF4.
func (m *tuning) lowForm() qlora.Type {
	if m.config.Stored != 0 {
		return m.config.Stored
	}
	if t, err := parseBase(m.form); err == nil {
		return t
	}
	return qlora.NF4
}

// splitBatch divides a micro-batch of several samples.
func splitBatch(whole dataset.Batch) (a, b dataset.Batch, ok bool) {
	n, sequences := len(whole.Starts)-1, 1
	if whole.Pairs != nil {
		n, sequences = len(whole.Pairs), pairLength
	}
	if n < 2 {
		return a, b, false
	}
	at := n / 2 * sequences
	cut := whole.Starts[at]
	first, second := whole, whole
	if whole.Images != nil {
		first.Images, second.Images = whole.Images[:at], whole.Images[at:]
	}
	first.Tokens, first.Labels, first.Starts = whole.Tokens[:cut], whole.Labels[:cut], whole.Starts[:at+1]
	second.Tokens, second.Labels, second.Starts, second.Draw = whole.Tokens[cut:], whole.Labels[cut:], nil, whole.Draw+uint64(n/2)
	for _, start := range whole.Starts[at:] {
		second.Starts = append(second.Starts, start-cut)
	}
	if whole.Pairs != nil {
		first.Pairs, second.Pairs = whole.Pairs[:n/2], whole.Pairs[n/2:]
	}
	return first, second, true
}
