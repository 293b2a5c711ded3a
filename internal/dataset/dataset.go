// Package dataset makes training batches of text. It reads files, encodes them as tokens and labels, and packs the
// samples without padding, in an order that a seed determines.
//
//	data, err := dataset.Open([]string{"chats.jsonl"}, tok, dataset.Options{Context: 1024, EOS: eos, Template: template})
//	fmt.Println(data.Stats())
//	batches := data.Batch(step, 16, 4) // 16 samples in micro-batches of 4
//
// All tokens are held in memory, 4 bytes each.
package dataset

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/chat"
	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/transformer"
)

// Options say how text becomes samples.
type Options struct {
	Context  int            // maximum number of tokens of a sample
	EOS      int32          // token that ends a text, -1 for none
	Template *chat.Template // chat template; nil if the tokenizer has none
	Seed     uint64         // determines the order of the samples, and which are held out
	HeldOut  float64        // share of the samples that are held out, from 0 to 0.5
	Pairs    bool           // a sample is a pair of answers: the chosen one and the rejected one
}

// Stats is what Open found.
type Stats struct {
	Samples   int // samples to train on
	HeldOut   int
	Tokens    int // tokens of all samples
	Trained   int // labels that count; the others lie in prompts
	Truncated int // samples that were cut to the context
	Dropped   int // samples that were left out, because none of their labels counts
}

// Set is the samples of some files.
type Set struct {
	options Options
	// tokens has the tokens of all samples. A token that does not count as a label is stored as its bitwise complement,
	// which is negative.
	tokens  []int32
	samples []sample
	held    []sample
	stats   Stats
	order   []int // numbers of the samples, in the order of this epoch
	epoch   int
}

// sample is tokens lo to hi-1. The last token is a label only. In a pair, the prompt with the chosen answer ends at mid,
// and the prompt with the rejected answer begins there. Other samples have a mid of 0.
type sample struct{ lo, hi, mid int }

// texts returns the range of tokens of each sequence.
func (x sample) texts() [][2]int {
	if x.mid == 0 {
		return [][2]int{{x.lo, x.hi}}
	}
	return [][2]int{{x.lo, x.mid}, {x.mid, x.hi}}
}

// Batch is a micro-batch.
type Batch struct {
	transformer.Batch
	// Pairs has the numbers of the batch's pairs, see [Set.Pairs]. A pair has two sequences: the prompt with the chosen
	// answer, then the prompt with the rejected one. If Pairs is nil, each sequence is a sample.
	Pairs []int
}

// MaxContext is the largest Options.Context that [Open] accepts.
const MaxContext = 1 << 24

// Open reads text files, JSON Lines (names that end in .jsonl or .json), both also as gzip or zstd compressed them, tables of
// Parquet, folders of these, and what a pattern of filepath.Match matches. Of a folder with tables (.parquet) only those are
// read. It reads each file once, from its beginning to its end; lines and rows are held while they become tokens.
//
// A text file is cut into samples of Context tokens. A line of JSON is one sample of one of three forms:
//
//	{"text": "..."}                                the labels are all of its tokens
//	{"prompt": "...", "completion": "..."}         the tokens of the completion
//	{"messages": [{"role": "", "content": ""}]}    the tokens of the assistant's turns
//
// With Pairs, text files are an error, and a line has one of these forms, with messages as above:
//
//	{"prompt": "...", "chosen": "...", "rejected": "..."}    the labels are the tokens of the answers
//	{"prompt": [], "chosen": [], "rejected": []}             the tokens after the prompt
//	{"chosen": [], "rejected": []}                           the prompt is the messages with which both begin
//
// A row of a table is the line that has the row's columns of these names as fields; other columns are not read.
//
// EOS ends each text, completion and answer; the chat template ends turns. All lines of a file have the same form. Fields
// that change a conversation, such as tools and tool_calls, are refused; other fields are ignored.
//
// The error wraps [snug.ErrConfig] for options out of range, no samples, and lines of another form, and
// [snug.ErrCorrupt] for text that is not UTF-8 and for damaged JSON; it names the file and the line or the
// row.
func Open(paths []string, tok *tokenizer.Tokenizer, o Options) (*Set, error) {
	s := &Set{options: o, epoch: -1}
	if o.Context < 1 || o.Context > MaxContext || !(o.HeldOut >= 0 && o.HeldOut <= 0.5) {
		return nil, fmt.Errorf("dataset: a context of %d tokens and a held-out share of %v, want 1 to %d, and 0 to 0.5: %w", o.Context, o.HeldOut, MaxContext, snug.ErrConfig)
	}
	r := &reader{Set: s, tok: tok}
	for _, path := range paths {
		if err := r.read(path); err != nil {
			return nil, fmt.Errorf("dataset: %w", err)
		}
	}
	if names := strings.Join(paths, ", "); len(s.samples) == 0 && s.stats.Dropped > 0 {
		return nil, fmt.Errorf("dataset: %s: none of %d samples has text to train on in its first %d tokens: %w", names, s.stats.Dropped, o.Context, snug.ErrConfig)
	} else if len(s.samples) == 0 {
		return nil, fmt.Errorf("dataset: %s: there is no text to train on: %w", names, snug.ErrConfig)
	}
	s.holdOut()
	return s, nil
}

// add makes a sample of the tokens from lo on, which it cuts to the context. It drops a sample without labels.
func (s *Set) add(lo int) {
	if most := lo + s.options.Context + 1; len(s.tokens) > most {
		s.tokens = s.tokens[:most]
		s.stats.Truncated++
	}
	n := predicted(s.tokens[lo:])
	if n == 0 {
		s.tokens = s.tokens[:lo]
		s.stats.Dropped++
		return
	}
	s.samples = append(s.samples, sample{lo: lo, hi: len(s.tokens)})
	s.stats.Tokens += len(s.tokens) - lo - 1
	s.stats.Trained += n
}

// addBlocks cuts the tokens from lo on, all of them labels, into samples. The last token of a sample, which is a label
// only, is also the first token of the next sample.
func (s *Set) addBlocks(lo int) {
	for ; lo+1 < len(s.tokens); lo += s.options.Context {
		hi := min(lo+s.options.Context+1, len(s.tokens))
		s.samples = append(s.samples, sample{lo: lo, hi: hi})
		s.stats.Tokens += hi - lo - 1
		s.stats.Trained += hi - lo - 1
	}
}

// holdOut chooses the samples that are held out.
func (s *Set) holdOut() {
	n := len(s.samples)
	k := min(int(s.options.HeldOut*float64(n)+0.5), n-1)
	if s.options.HeldOut > 0 && n > 1 {
		k = max(k, 1)
	}
	order := rand.New(rand.NewPCG(s.options.Seed, 1<<63)).Perm(n)
	held := map[int]bool{}
	for _, i := range order[:k] {
		held[i] = true
	}
	var train []sample
	for i, x := range s.samples {
		if held[i] {
			s.held = append(s.held, x)
		} else {
			train = append(train, x)
		}
	}
	s.samples = train
	s.stats.Samples, s.stats.HeldOut = len(s.samples), len(s.held)
}

// Stats returns what Open found.
func (s *Set) Stats() Stats { return s.stats }

// Sum is the SHA-256 of the samples and their order: two sets with the same sum give the same batches.
func (s *Set) Sum() [sha256.Size]byte {
	h := sha256.New()
	b := binary.LittleEndian.AppendUint64(nil, s.options.Seed)
	for _, list := range [][]sample{s.samples, s.held} {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(list)))
		for _, x := range list {
			b = binary.LittleEndian.AppendUint64(b, uint64(x.hi-x.lo))
			if x.mid > 0 {
				b = binary.LittleEndian.AppendUint64(b, uint64(x.mid-x.lo))
			}
			for _, t := range s.tokens[x.lo:x.hi] {
				b = binary.LittleEndian.AppendUint32(b, uint32(t))
			}
			h.Write(b)
			b = b[:0]
		}
	}
	h.Write(b)
	return [sha256.Size]byte(h.Sum(nil))
}

// Batch returns the micro-batches of a step. Together they have the given number of samples, and each has at most
// micro. Steps count from 0. Each epoch has every sample once, in a new order; an epoch may end within a step. The
// samples of a step do not depend on micro.
func (s *Set) Batch(step, samples, micro int) []Batch {
	return s.Part(step, samples, micro, 0, samples)
}

// Part is Batch of samples lo to hi-1 of a step, for one of several ranks.
func (s *Set) Part(step, samples, micro, lo, hi int) (batches []Batch) {
	var list []int
	for i := lo; i < hi; i++ {
		at := step*samples + i
		s.enter(at / len(s.samples))
		list = append(list, s.order[at%len(s.samples)])
	}
	for at := 0; at < len(list); at += micro {
		b := s.batch(list[at:min(at+micro, len(list))])
		b.Draw = uint64(step)<<16 + uint64(lo+at)
		batches = append(batches, b)
	}
	return batches
}

// batch returns a batch of the samples with these numbers. Held-out samples have the numbers after the others.
func (s *Set) batch(numbers []int) (b Batch) {
	list := make([]sample, len(numbers))
	for i, n := range numbers {
		if n < len(s.samples) {
			list[i] = s.samples[n]
		} else {
			list[i] = s.held[n-len(s.samples)]
		}
	}
	if b.Batch = s.pack(list); s.options.Pairs {
		b.Pairs = numbers
	}
	return b
}

// enter sets the order of the samples in an epoch.
func (s *Set) enter(epoch int) {
	if epoch != s.epoch {
		s.order, s.epoch = rand.New(rand.NewPCG(s.options.Seed, uint64(epoch))).Perm(len(s.samples)), epoch
	}
}

// HeldOut yields the samples that are held out, in batches of at most micro samples.
func (s *Set) HeldOut(micro int) iter.Seq[Batch] {
	return func(yield func(Batch) bool) {
		n := len(s.samples)
		for lo := 0; lo < len(s.held); lo += micro {
			var numbers []int
			for i := range min(micro, len(s.held)-lo) {
				numbers = append(numbers, n+lo+i)
			}
			if !yield(s.batch(numbers)) {
				return
			}
		}
	}
}

// pack returns a batch of samples, one after the other, without padding.
func (s *Set) pack(list []sample) transformer.Batch {
	b := transformer.Batch{Starts: []int{0}}
	for _, x := range list {
		for _, text := range x.texts() {
			tokens := s.tokens[text[0]:text[1]]
			for i, t := range tokens[:len(tokens)-1] {
				label := max(tokens[i+1], -1)
				if t < 0 {
					t = ^t
				}
				b.Tokens, b.Labels = append(b.Tokens, t), append(b.Labels, label)
			}
			b.Starts = append(b.Starts, len(b.Tokens))
		}
	}
	return b
}

// Longest returns the number of tokens of the longest sequence.
func (s *Set) Longest() (n int) {
	for _, list := range [][]sample{s.samples, s.held} {
		for _, x := range list {
			for _, text := range x.texts() {
				n = max(n, text[1]-text[0]-1)
			}
		}
	}
	return n
}
