// Package dataset makes training batches of the data that people have: conversations, instructions, preferences and texts,
// as JSON, tables or plain text. It reads each row by its fields, encodes it as tokens and labels, and packs the samples
// without padding, in an order that a seed determines.
//
//	template, err := chat.Open(tok, chat.Options{})
//	data, err := dataset.Open([]string{"chats.jsonl"}, tok, dataset.Options{Context: 1024, Template: template})
//	defer data.Close()
//	for _, file := range data.Stats().Files {
//		fmt.Println(file.Path, file.Lines()) // how it was read, what it ignores, and what is not learned
//	}
//	for sample, err := range data.Show(tok) {
//		fmt.Println(sample.Texts[0]) // what is learned lies between ⟦ and ⟧
//		break
//	}
//	batches, err := data.Batch(step, 16, 4) // 16 samples in micro-batches of 4
//
// A row has one of the forms that [Forms] lists. A field is read by the form, or it is known ([KnownFields]) and obeyed or
// refused, or it changes nothing and is listed in [File].Ignored.
//
// Up to 4 MiB of tokens are held in memory, 4 bytes each. If there are more, all of them are in a temporary file, from
// which the samples of a batch are read. Besides, a sample takes about 8 bytes of memory, a pair 12: 4 of them in the order of an epoch. An
// image takes about 250 bytes; its file stays where it is, or goes to a temporary one if a row has it.
package dataset

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/transformer"
	"github.com/snug-ml/snug/vision"
)

// Options say how text becomes samples.
type Options struct {
	Context int // maximum number of tokens of a sample
	// EOS is the token that ends a text, -1 for none. Nil is the one that the tokenizer names; a text is an error if it names
	// none.
	EOS      *int32
	Template *chat.Template // chat template; nil if the tokenizer has none
	Seed     uint64         // determines the order of the samples, and which are held out
	HeldOut  float64        // share of the samples that are held out, from 0 to 0.5
	// HeldOutMost bounds the samples that are held out; 0 for no bound.
	HeldOutMost int
	Pairs       bool // a sample is a pair of answers: the chosen one and the rejected one
	// Format is the name of the form that rows have, see [Forms]; empty or "auto": what fits. With it, fields of other
	// forms are ignored.
	Format string
	// Map names fields: Map["prompt"] = "question" reads the field question as prompt. An empty name leaves a field out.
	Map map[string]string
	// Images says how the model sees images; nil: only text is learned, and rows with images are refused.
	Images *vision.Input
	// MaxFrames is the most frames of a video, evenly chosen; 0: as the model's files say, see [vision.Processor.MaxFrames].
	MaxFrames int
	// ImageFolder is where relative paths of images and videos begin; empty: in the folder of the file of the row.
	ImageFolder string
	// Memory is how many bytes the reading of a file may take, beside the tokens: 0 for 256 MiB, and 4 MiB at least. It
	// bounds a row, a word and a page of Parquet, whose sizes are counted before memory is taken for them. What is larger is
	// an error that names the limit.
	Memory int64
	// Progress, unless nil, is called now and then with how many bytes of a file were read, of how many; of is -1 for a pipe.
	Progress func(path string, read, of int64)
	memory   int // bytes of tokens that may stay in memory; 0: inMemory
}

// Stats is what Open found.
type Stats struct {
	Samples   int    `json:"samples"` // samples to train on
	HeldOut   int    `json:"held_out"`
	Tokens    int64  `json:"tokens"`           // tokens of all samples
	Trained   int64  `json:"labels"`           // labels that count; the others lie in prompts
	Truncated int    `json:"cut"`              // samples that were cut to the context
	Dropped   int    `json:"left_out"`         // rows that were left out, because nothing of them can be learned
	OnDisk    int64  `json:"disk_bytes"`       // bytes of the temporary file with the tokens, 0 if they are in memory
	Folder    string `json:"folder,omitempty"` // where the file is, or was before it was removed
	Files     []File `json:"files"`            // in the order in which they were read
}

// Set is the samples of some files. It is for one goroutine at a time.
type Set struct {
	options Options
	// spool has the tokens of all samples. A token that does not count as a label is stored as its bitwise complement,
	// which is negative.
	spool   spool
	blobs   temporary  // the files of images that have no file of their own
	eos     *int32     // Options.EOS, or the tokenizer's; nil if it names none
	list    sampleList // of the samples in the order of the files
	held    []uint32   // numbers in list of the samples that are held out, in order
	stats   Stats
	order   []uint32 // numbers of the samples, in the order of this epoch
	epoch   int64
	origins []string // of the first samples, in the order in which they were read

	pictures []picture // of all samples, in the order of the files
}

// Batch is a micro-batch.
type Batch struct {
	// Batch has the Tokens, the Labels (Labels[i] is the token that follows Tokens[i], -1 where none is learned) and the
	// Starts of the sequences, see [transformer.Batch].
	transformer.Batch
	// Pairs has the numbers of the batch's pairs, see [Set.Pairs]. A pair has two sequences: the prompt with the chosen
	// answer, then the prompt with the rejected one. If Pairs is nil, each sequence is a sample.
	Pairs []int
	// Images has the numbers of the images of each sequence, in the order of their placeholders, see [Set.Pixels]; nil if no sample of the
	// set has an image.
	Images [][]int
}

// MaxContext is the largest Options.Context that [Open] accepts.
const MaxContext = 1 << 24

// Open reads files of JSON, CSV, Parquet and text, all of them but Parquet also as gzip or zstd compressed them, folders of
// these, and what a pattern of filepath.Match matches. The ending of a name says what its file is, see [Endings]; Parquet is
// known by its first bytes. A pipe, such as /dev/stdin, is read once; it is JSON if it begins so, and else text. Of a folder
// the files of one kind are read, in the order of their names: those of Parquet, or else those of JSON, CSV or text.
// Stats.Files lists what was read as what, and what was not and why. Links to files are followed.
//
// A text file is cut into samples of Context tokens. The first row of another file decides which of the [Forms] its rows
// have, unless Options.Format says it; a row of another form is an error. The labels are what the model is to write: the whole
// text, the completion, or the assistant's turns, each with its end. With Pairs a row has a chosen and a rejected answer.
//
// EOS ends each text, completion and answer; the chat template ends turns. Rows from which nothing can be learned, such as
// conversations without an answer, are left out and counted; if no others are there, the reason is the error. What the
// template does not write is counted in the Warnings of a [File].
//
// Names of fields are exact, and a name that comes twice in an object is an error, as are halves of surrogate pairs and bytes
// that are not UTF-8. Files are read in pieces: in memory are a row, a page of each column of Parquet that is read, or 64 KiB
// of text, and the tokens that come of them. See Options.Memory.
//
// The error wraps [snug.ErrConfig] for options out of range, no samples, and lines of another form, and
// [snug.ErrCorrupt] for text that is not UTF-8 and for damaged JSON; it names the file and the line or the
// row. An error of the temporary file says how many bytes it has and wants, and which variable of the environment names
// its folder.
func Open(paths []string, tok *tokenizer.Tokenizer, o Options) (*Set, error) {
	s := newSet(o)
	if o.Context < 1 || o.Context > MaxContext || !(o.HeldOut >= 0 && o.HeldOut <= 0.5) || o.HeldOutMost < 0 {
		return nil, fmt.Errorf("dataset: a context of %d tokens, a held-out share of %v and at most %d samples held out, want 1 to %d, 0 to 0.5, and 0 or more: %w", o.Context, o.HeldOut, o.HeldOutMost, MaxContext, snug.ErrConfig)
	}
	if o.Images != nil && o.Pairs {
		return nil, fmt.Errorf("dataset: pairs of answers with Images, which are for samples of one answer: %w", snug.ErrConfig)
	}
	for _, check := range []func() error{o.checkFormat, o.checkMap} {
		if err := check(); err != nil {
			return nil, fmt.Errorf("dataset: %w", err)
		}
	}
	if o.EOS == nil {
		name := tok.Config().EOS
		if id, known := tok.ID(name); known && name != "" {
			s.eos = &id
		}
	}
	if err := s.read(paths, tok); err != nil {
		return nil, errors.Join(fmt.Errorf("dataset: %w", err), s.Close())
	}
	s.holdOut()
	return s, nil
}

func newSet(o Options) *Set {
	return &Set{options: o, epoch: -1, eos: o.EOS, spool: spool{limit: cmp.Or(o.memory, inMemory)}}
}

// ending returns the token that ends a text, -1 for none.
func (s *Set) ending() (int32, error) {
	if s.eos == nil {
		return 0, fmt.Errorf("the tokenizer names no token that ends a text: give Options.EOS, which is -1 for none: %w", snug.ErrConfig)
	}
	return *s.eos, nil
}

// read adds the samples of all files.
func (s *Set) read(paths []string, tok *tokenizer.Tokenizer) error {
	r := &reader{Set: s, tok: tok}
	for _, path := range paths {
		if err := r.read(path); err != nil {
			return err
		}
	}
	if s.list.n == 0 && r.unlearned != nil {
		return r.unlearned
	}
	if names := strings.Join(paths, ", "); s.list.n == 0 && s.stats.Dropped > 0 {
		return fmt.Errorf("%s: none of %d samples has text to train on in its first %d tokens (-context; a larger one takes more memory): %w", names, s.stats.Dropped, s.options.Context, snug.ErrConfig)
	} else if s.list.n == 0 {
		return fmt.Errorf("%s: there is no text to train on: %w", names, snug.ErrConfig)
	}
	return s.end()
}

// end says that no samples follow.
func (s *Set) end() error {
	err := s.spool.end()
	if f := s.spool.file; f != nil {
		s.stats.OnDisk, s.stats.Folder = s.spool.written, filepath.Dir(f.Name())
	}
	return err
}

// Close removes the temporary file, if there is one. Closing twice does nothing.
func (s *Set) Close() error { return errors.Join(s.spool.close(), s.blobs.close()) }

// add makes a sample of the tokens of a text, with its images, or of those of two answers with their prompt. It cuts each to the context, and
// drops a sample if one of them has no label left.
func (s *Set) add(pictures []picture, texts ...[]int32) error {
	kept, cut := make([][]int32, len(texts)), false
	for i, tokens := range texts {
		kept[i] = s.cut(tokens)
		cut = cut || len(kept[i]) < len(tokens)
	}
	if cut {
		s.stats.Truncated++
	}
	tokens, labels := slices.Concat(kept...), 0
	for _, part := range kept {
		n := predicted(part)
		if n == 0 {
			s.stats.Dropped++
			return nil
		}
		labels += n
	}
	x := sample{at: s.spool.len(), n: int32(len(tokens)), images: [2]int{len(s.pictures), len(s.pictures) + len(pictures)}}
	s.pictures = append(s.pictures, pictures...)
	if len(kept) > 1 {
		x.mid = int32(len(kept[0]))
	}
	s.list.add(x)
	s.stats.Tokens += int64(len(tokens) - len(kept))
	s.stats.Trained += int64(labels)
	return s.spool.add(tokens)
}

// holdOut chooses the samples that are held out. The epochs use the memory of their order again.
func (s *Set) holdOut() {
	n := s.list.n
	k := min(int(s.options.HeldOut*float64(n)+0.5), n-1)
	if s.options.HeldOut > 0 && n > 1 {
		k = max(k, 1)
	}
	if most := s.options.HeldOutMost; most > 0 {
		k = min(k, most)
	}
	s.order = permutation(nil, n, s.options.Seed, 1<<63)
	s.held = slices.Sorted(slices.Values(s.order[:k]))
	s.stats.Samples, s.stats.HeldOut = s.training(), len(s.held)
}

// permutation returns the numbers below n in an order that two seeds determine, 4 bytes each, in the memory of p if it is
// large enough.
func permutation(p []uint32, n int, seed, stream uint64) []uint32 {
	p = slices.Grow(p[:0], n)[:n]
	for i := range p {
		p[i] = uint32(i)
	}
	rand.New(rand.NewPCG(seed, stream)).Shuffle(n, func(i, j int) { p[i], p[j] = p[j], p[i] }) // as Perm of math/rand/v2
	return p
}

// Stats returns what Open found.
func (s *Set) Stats() Stats { return s.stats }

// Sum returns the SHA-256 of the samples and their order: two sets with the same sum give the same batches. It reads all
// samples.
func (s *Set) Sum() (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	b := binary.LittleEndian.AppendUint64(nil, s.options.Seed)
	n := s.training()
	for _, part := range [][2]int{{0, n}, {n, s.list.n}} {
		b = binary.LittleEndian.AppendUint64(b, uint64(part[1]-part[0]))
		for number := part[0]; number < part[1]; number++ {
			x := s.sample(number)
			b = binary.LittleEndian.AppendUint64(b, uint64(x.n))
			if x.mid > 0 {
				b = binary.LittleEndian.AppendUint64(b, uint64(x.mid))
			}
			tokens, err := s.spool.read(x.at, int(x.n))
			if err != nil {
				return sum, err
			}
			h.Write(b)
			h.Write(tokens)
			b = b[:0]
			for i := x.images[0]; i < x.images[1]; i++ {
				h.Write(s.pictures[i].sum[:])
			}
		}
	}
	h.Write(b)
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// Batch returns the micro-batches of a step. Together they have the given number of samples, and each has at most
// micro. Steps count from 0. Each epoch has every sample once, in a new order; an epoch may end within a step. The
// samples of a step do not depend on micro.
func (s *Set) Batch(step, samples, micro int) ([]Batch, error) {
	return s.Part(step, samples, micro, 0, samples)
}

// Part is Batch of samples lo to hi-1 of a step, for one of several ranks.
func (s *Set) Part(step, samples, micro, lo, hi int) (batches []Batch, err error) {
	var list []int
	for i := lo; i < hi; i++ {
		list = append(list, s.number(int64(step)*int64(samples)+int64(i)))
	}
	for at := 0; at < len(list); at += micro {
		b, err := s.batch(list[at:min(at+micro, len(list))])
		if err != nil {
			return nil, err
		}
		b.Draw = uint64(step)<<16 + uint64(lo+at)
		batches = append(batches, b)
	}
	return batches, nil
}

// batch returns a batch of the samples with these numbers. Held-out samples have the numbers after the others.
func (s *Set) batch(numbers []int) (b Batch, err error) {
	list := make([]sample, len(numbers))
	for i, n := range numbers {
		list[i] = s.sample(n)
	}
	if s.options.Pairs {
		b.Pairs = numbers
	}
	if len(s.pictures) > 0 {
		b.Images = make([][]int, len(list))
		for i, x := range list {
			for n := x.images[0]; n < x.images[1]; n++ {
				b.Images[i] = append(b.Images[i], n)
			}
		}
	}
	b.Batch, err = s.pack(list)
	return b, err
}

// number returns the number of the sample that is at this place of all epochs.
func (s *Set) number(at int64) int {
	n := int64(s.training())
	s.enter(at / n)
	return int(s.order[at%n])
}

// enter sets the order of the samples in an epoch.
func (s *Set) enter(epoch int64) {
	if epoch != s.epoch {
		s.order, s.epoch = permutation(s.order, s.training(), s.options.Seed, uint64(epoch)), epoch
	}
}

// HeldOut yields the samples that are held out, in batches of at most micro samples. It ends after an error.
func (s *Set) HeldOut(micro int) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		n := s.training()
		for lo := 0; lo < len(s.held); lo += micro {
			var numbers []int
			for i := range min(micro, len(s.held)-lo) {
				numbers = append(numbers, n+lo+i)
			}
			if b, err := s.batch(numbers); !yield(b, err) || err != nil {
				return
			}
		}
	}
}

// pack returns a batch of samples, one after the other, without padding.
func (s *Set) pack(list []sample) (transformer.Batch, error) {
	b := transformer.Batch{Starts: []int{0}}
	for _, x := range list {
		tokens, err := s.spool.read(x.at, int(x.n))
		if err != nil {
			return transformer.Batch{}, err
		}
		at := func(i int) int32 { return int32(binary.LittleEndian.Uint32(tokens[tokenBytes*i:])) }
		for _, text := range x.texts() {
			for i := text[0]; i < text[1]-1; i++ {
				t, label := at(i), max(at(i+1), -1)
				if t < 0 {
					t = ^t
				}
				b.Tokens, b.Labels = append(b.Tokens, t), append(b.Labels, label)
			}
			b.Starts = append(b.Starts, len(b.Tokens))
		}
	}
	return b, nil
}

// Longest returns the number of tokens of the longest sequence.
func (s *Set) Longest() (n int) {
	for i := range s.list.n {
		for _, text := range s.list.get(i).texts() {
			n = max(n, text[1]-text[0]-1)
		}
	}
	return n
}
